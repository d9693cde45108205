"""Tools on offer and the requests that ask for them, known and made up."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from nano.names import HELD_OUT_VERBS, VERBS
from nano.values import Param, Value, link, spoken
from nano.words import Split, Words
from service.harmony.types import Tool


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool and the ways to ask for it."""

    name: str
    description: str
    params: tuple[Param, ...]
    requests: tuple[str, ...] = ()  # empty: worded by rule, from the verb and the thing
    verb: str = ""
    thing: str = ""

    def tool(self) -> Tool:
        """Return the tool as a client offers it."""
        if not self.params:
            return Tool(self.name, self.description)
        required = [param.name for param in self.params if param.is_required]
        schema: dict[str, Any] = {
            "type": "object",
            "properties": {param.name: param.schema() for param in self.params},
            "required": required,
        }
        return Tool(self.name, self.description, schema)


@dataclass(frozen=True, slots=True)
class Request:
    """What the user says and the call that answers it."""

    text: str
    tool: str
    arguments: dict[str, Value]


@cache
def known_tools(split: Split) -> tuple[ToolSpec, ...]:
    """Read the tools written by hand for one side of the split."""
    file = "known_tools.txt" if split == "train" else "held_out_tools.txt"
    lines = Path(__file__).with_name(file).read_text().splitlines()
    return tuple(_parse(line) for line in lines if line and not line.startswith("#"))


def _parse(line: str) -> ToolSpec:
    name, description, params, requests = (part.strip() for part in line.split("|"))
    return ToolSpec(
        name,
        description,
        tuple(_parse_param(text) for text in re.split(r"\s+", params) if text),
        tuple(request.strip() for request in requests.split(" ; ")),
    )


def _parse_param(text: str) -> Param:
    name, kind = text.rstrip("!").split(":")
    choices = re.fullmatch(r"enum\((.*)\)", kind)
    listed = tuple(choices[1].split(",")) if choices else ()
    return Param(name, "enum" if choices else kind, text.endswith("!"), listed)


_LOOKUPS = ["get", "get", "get", "fetch", "lookup", "find", "read", "check", "query"]
_PARAM_NAMES = {
    "place": ["location", "city", "place", "town", "region", "address", "destination"],
    "person": ["name", "person", "customer", "owner", "contact", "user", "employee"],
    "count": ["people", "guests", "nights", "days", "hours", "items", "tickets", "seats"],
    "email": ["email", "mail", "contact"],
    "date": ["date", "day", "start", "deadline"],
}
_NAMED_KINDS = "word title quoted code int decimal bool enum email date list".split()


def make_tool(words: Words, noun: str | None = None) -> ToolSpec:
    """Make up a tool around a noun, with up to four parameters."""
    rng = words.rng
    noun = noun or words.noun()
    verb = _verb(words)
    second = words.noun() if rng.random() < 0.2 else ""
    thing = f"{noun} {second}".strip()
    name = _name(words, [verb, *thing.split()])
    params = _make_params(words, taken={noun, second})
    described = _describe(words, verb, thing, params)
    if not name.startswith(verb):
        verb = ""
    return ToolSpec(name, described, params, verb=verb, thing=thing)


def _verb(words: Words) -> str:
    """Draw a verb; any word may be one, so that a name's start must be read, not known."""
    style = words.rng.random()
    if style < 0.35:
        return words.rng.choice(_LOOKUPS)
    return words.choose(VERBS, HELD_OUT_VERBS) if style < 0.55 else words.noun()


def _name(words: Words, parts: list[str]) -> str:
    style = words.rng.random()
    if style < 0.12:
        return parts[0] + "".join(part.capitalize() for part in parts[1:])
    if style < 0.2:
        return "_".join(parts[1:])
    return "-".join(parts) if style < 0.24 else "_".join(parts)


def _describe(words: Words, verb: str, thing: str, params: Sequence[Param]) -> str:
    if words.rng.random() < 0.12:
        return ""
    verb = {"lookup": "look up", "query": "get"}.get(verb, verb).capitalize()
    forms = [
        f"{verb} the {thing}",
        f"{verb} a {thing}",
        f"{verb} {thing}",
        f"{verb} the current {thing}",
    ]
    text = words.rng.choice(forms)
    if params and words.rng.random() < 0.4:
        text += f" for a given {params[0].name}"
    return text + "."


def _make_params(words: Words, taken: set[str]) -> tuple[Param, ...]:
    rng = words.rng
    params: list[Param] = []
    for _ in range(rng.choices(range(5), [10, 45, 30, 11, 4])[0]):
        kind = rng.choice(["place", "person", "count", "bare"]) if not params else ""
        param = _make_param(words, kind or rng.choice(_NAMED_KINDS), bool(params))
        if param.name not in taken:
            taken.add(param.name)
            params.append(param)
    return tuple(sorted(params, key=lambda param: not param.is_required))


def _make_param(words: Words, kind: str, may_be_optional: bool) -> Param:
    rng = words.rng
    is_usual = kind in _PARAM_NAMES and rng.random() < 0.5
    name = rng.choice(_PARAM_NAMES[kind]) if is_usual else words.noun()
    if rng.random() < 0.15:
        name = f"{words.noun()}_{name}"
    choices: tuple[str, ...] = ()
    if kind == "enum":
        choices = tuple(dict.fromkeys(words.noun() for _ in range(rng.randint(2, 4))))
    if kind == "bare":
        kind = rng.choice(["code", "email", "title", "int", "quoted"])
        name = rng.choice(["id", "number", "name", "title", "key", name, name, name])
    plain = name.replace("_", " ")
    description = ""
    if rng.random() < 0.3:
        description = rng.choice(
            [f"The {plain}", f"The {plain} to use", f"A {plain}, e.g. {words.noun()}"]
        )
    return Param(name, kind, not may_be_optional or rng.random() < 0.6, choices, description)


def ask(words: Words, spec: ToolSpec) -> Request:
    """Word a request for the tool, with the values its call must carry."""
    return _ask_known(words, spec) if spec.requests else _ask_made_up(words, spec)


def _ask_known(words: Words, spec: ToolSpec) -> Request:
    form = words.rng.choice(spec.requests)
    form = re.sub(r"\[(.*?)\]", lambda match: match[1] if words.rng.random() < 0.4 else "", form)
    used = [param for param in spec.params if f"{{{param.name}}}" in form]
    values = {param.name: param.draw(words) for param in used}
    text = form.format(**{param.name: spoken(param, values[param.name]) for param in used})
    if words.rng.random() < 0.12:
        text = text[0].lower() + text[1:].rstrip(".?!")
    return Request(text, spec.name, values)


_TRAIN_LOOKUPS = [
    "What is the {n}{a}?",
    "Show me the {n}{a}.",
    "Tell me the {n}{a}.",
    "Get the {n}{a}.",
    "I need the {n}{a}.",
    "Give me the {n}{a}, please.",
    "{N}{a}?",
    "Can you find the {n}{a}?",
    "What's the {n}{a}?",
]
_HELD_OUT_LOOKUPS = [
    "Let me know the {n}{a}.",
    "Do you know the {n}{a}?",
    "I wonder what the {n}{a} is like.",
    "Could you look at the {n}{a}?",
    "Hey, the {n}{a}?",
]
_TRAIN_ACTIONS = [
    "{V} the {n}{a}.",
    "{V} a {n}{a}.",
    "{V} {n}{a}.",
    "Please {v} the {n}{a}.",
    "Can you {v} a {n}{a}?",
    "I want to {v} a {n}{a}.",
    "Could you {v} the {n}{a}?",
    "I need you to {v} the {n}{a}",
    "Hi! {V} my {n}{a}.",
]
_HELD_OUT_ACTIONS = [
    "Would you {v} the {n}{a}?",
    "Kindly {v} a {n}{a}.",
    "Hey, {v} my {n}{a}.",
    "It is time to {v} the {n}{a}.",
    "I would like to {v} a {n}{a}, thanks.",
]


def _ask_made_up(words: Words, spec: ToolSpec) -> Request:
    rng = words.rng
    verb, thing = spec.verb, spec.thing
    used = [param for param in spec.params if param.is_required or rng.random() < 0.5]
    values = {param.name: param.draw(words) for param in used}
    spoken_links = [link(words, param, values[param.name]) for param in used]
    glue = rng.choice([" ", " ", ", ", " and "])
    args = f" {glue.join(spoken_links)}" if used else ""
    if verb in _LOOKUPS or not verb:
        form = words.choose(_TRAIN_LOOKUPS, _HELD_OUT_LOOKUPS)
    else:
        form = words.choose(_TRAIN_ACTIONS, _HELD_OUT_ACTIONS)
    text = form.format(v=verb, V=verb.capitalize(), n=thing, N=thing.capitalize(), a=args)
    return Request(text, spec.name, values)
