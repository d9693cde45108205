"""Parameters of tools: their JSON Schemas, their values, how a user words them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tools.nano.phrases import phrases, sections
from tools.nano.words import Words

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
    "quoted": lambda words: words.quote(1, 5),
    "code": Words.code,
    "sum": lambda words: f"{words.number()} {words.rng.choice('+-*')} {words.number()}",
    "path": lambda words: f"{words.noun()}/{words.noun()}.{words.rng.choice(['txt', 'md', 'csv'])}",
    "ticker": Words.ticker,
    "email": Words.email,
    "date": Words.date,
    "time": Words.time,
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
_WORD_BEHIND_SHARE = 0.25
_LATE_LINK_SHARE = 0.5
# What parameters of a kind are often called.
USUAL_NAMES: Mapping[str, list[str]] = {
    "place": ["location", "city", "place", "town", "region", "address", "destination"],
    "person": ["name", "person", "customer", "owner", "contact", "user", "employee"],
    "count": ["people", "guests", "nights", "days", "hours", "items", "tickets", "seats"],
    "email": ["email", "mail", "contact"],
    "date": ["date", "day", "start", "deadline"],
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


def link(words: Words, param: Param, value: Value, is_named: bool) -> str:
    """Word one argument, as in 'in Paris' or 'with limit 5'."""
    form = _named(words) if is_named else _unnamed(words, param.kind)
    return form.format(p=param.name.replace("_", " "), v=spoken(param, value))


def _named(words: Words) -> str:
    if before := words.filler(0.25):
        return f"{before} {{p}} {words.filler(0.5)} {{v}}".replace("  ", " ")
    return words.say("named links")


def _unnamed(words: Words, kind: str) -> str:
    behind = words.filler(_WORD_BEHIND_SHARE) if kind == "word" else ""  # 'with olives on top'
    return f"{_unnamed_before(words, kind)} {behind}".rstrip()


def _unnamed_before(words: Words, kind: str) -> str:
    if before := words.filler(0.25):
        return before + " {v}"
    late = sections().get(f"late links of {kind}")
    if words.is_late and late and words.rng.random() < _LATE_LINK_SHARE:
        return words.rng.choice(late.train)
    of_any = phrases("links")
    own = sections().get(f"links of {kind}", of_any)
    train = of_any.train if own is of_any or words.rng.random() < 0.25 else own.train
    return words.choose(train, own.heldout or of_any.heldout)
