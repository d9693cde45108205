"""Parameters of made-up tools: their JSON Schemas, their values, how a user words them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nano.words import Words

Value = Any  # what JSON can hold


@dataclass(frozen=True, slots=True)
class Param:
    """One parameter of a tool."""

    name: str
    kind: str
    is_required: bool = True
    choices: tuple[str, ...] = ()  # of an enum
    description: str = ""

    def schema(self) -> dict[str, Any]:
        """Return the parameter's JSON Schema."""
        schema = dict(_SCHEMAS.get(self.kind, {"type": "string"}))
        if self.choices:
            schema["enum"] = list(self.choices)
        if self.description:
            schema["description"] = self.description
        return schema

    def draw(self, words: Words) -> Value:
        """Draw a value a user might give."""
        if self.choices:
            return words.rng.choice(self.choices)
        return _DRAWS[self.kind](words)


_SCHEMAS: Mapping[str, dict[str, Any]] = {
    "int": {"type": "integer"},
    "number": {"type": "number"},
    "decimal": {"type": "number"},
    "count": {"type": "integer"},
    "bool": {"type": "boolean"},
    "list": {"type": "array", "items": {"type": "string"}},
}
_DRAWS: Mapping[str, Callable[[Words], Value]] = {
    "place": Words.place,
    "person": Words.person,
    "word": Words.noun,
    "title": lambda words: " ".join(words.made_up() for _ in range(words.rng.randint(1, 2))),
    "phrase": lambda words: words.phrase(1, 5),
    "text": lambda words: words.phrase(2, 6),
    "quoted": lambda words: words.phrase(1, 5),
    "code": Words.code,
    "sum": lambda words: f"{words.number()} {words.rng.choice('+-*')} {words.number()}",
    "path": lambda words: f"{words.noun()}/{words.noun()}.{words.rng.choice(['txt', 'md', 'csv'])}",
    "ticker": Words.ticker,
    "email": Words.email,
    "date": Words.date,
    "language": lambda words: words.choose(
        ["French", "German", "Spanish", "Italian", "Dutch", "Polish"],
        ["Greek", "Danish", "Turkish", "Swedish"],
    ),
    "int": Words.number,
    "number": Words.number,
    "decimal": Words.decimal,
    "count": lambda words: words.rng.randint(2, 40),
    "bool": lambda words: words.rng.random() < 0.5,
    "list": lambda words: [words.noun() for _ in range(words.rng.randint(2, 3))],
}


def spoken(param: Param, value: Value) -> str:
    """Return the value as the user writes it."""
    if param.kind == "quoted":
        return f'"{value}"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"{', '.join(value[:-1])} and {value[-1]}"
    return str(value)


_TRAIN_LINKS = {
    "place": ["in {v}", "in {v}", "for {v}", "at {v}"],
    "person": ["for {v}", "for {v}", "of {v}"],
    "count": ["for {v} {p}", "with {v} {p}"],
    "bare": ["{v}"],
}
_HELD_OUT_LINKS = {
    "place": ["over in {v}", "near {v}", "around {v}"],
    "person": ["belonging to {v}", "on behalf of {v}"],
    "count": ["and {v} {p}", "counting {v} {p}"],
    "bare": ["{v}"],
}
_TRAIN_NAMED = [
    "with {p} {v}",
    "with the {p} {v}",
    "using {p} {v}",
    "where {p} is {v}",
    "with {p} set to {v}",
    "whose {p} is {v}",
    "{p}: {v}",
    "{p} {v}",
    "and {p} {v}",
]
_HELD_OUT_NAMED = [
    "having {p} {v}",
    "setting {p} to {v}",
    "and its {p} should be {v}",
    "by {p} {v}",
    "with a {p} of {v}",
    "{p} = {v}",
]


def link(words: Words, param: Param, value: Value) -> str:
    """Word one argument, as in 'in Paris' or 'with limit 5'."""
    held_out = _HELD_OUT_LINKS.get(param.kind, _HELD_OUT_NAMED)
    form = words.choose(_TRAIN_LINKS.get(param.kind, _TRAIN_NAMED), held_out)
    name = param.name.replace("_", " ")
    return form.format(p=name, v=spoken(param, value))
