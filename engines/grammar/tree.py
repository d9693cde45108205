"""What an answer may be, in no engine's own words: a small tree of ours.

It begins where generation does and ends where the answer may: a finished tree allows the
first of the request's stop ids, and nothing else. Control tokens are named by id, by
`Token` alone; no text, pattern, schema or grammar in a tree can spell one. Each dialect that an
engine understands has one writer beside this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from engines.errors import InvalidGrammar

MAX_DEPTH: Final = 64  # of nodes within nodes


class Grammar:
    """A node of the tree: one of the classes below."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Literal(Grammar):
    """Exactly this text."""

    text: str


@dataclass(frozen=True, slots=True)
class Token(Grammar):
    """One token, by its id: how a control token is written."""

    id: int


@dataclass(frozen=True, slots=True)
class Text(Grammar):
    """Any text, which ends where a control token follows or the answer ends."""

    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Until(Grammar):
    """Any text up to and with the first occurrence of a mark."""

    mark: str


@dataclass(frozen=True, slots=True)
class JsonSchema(Grammar):
    """A JSON document of a schema, which is JSON itself; objects are as open as it says."""

    schema: str
    label: str = ""  # what an error about it calls it


@dataclass(frozen=True, slots=True)
class Regex(Grammar):
    """Text that a regular expression matches as a whole."""

    pattern: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class Lark(Grammar):
    """Text of a grammar in Lark's syntax, whose first rule is `start`."""

    grammar: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class Gbnf(Grammar):
    """Text of a grammar in llama.cpp's EBNF, whose first rule is `root`."""

    grammar: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class Concatenation(Grammar):
    """Parts, one after another."""

    parts: tuple[Grammar, ...]


@dataclass(frozen=True, slots=True)
class Alternation(Grammar):
    """Exactly one of the options."""

    options: tuple[Grammar, ...]


@dataclass(frozen=True, slots=True)
class Repeat(Grammar):
    """A part several times, one after another; `most` None: without end."""

    part: Grammar
    least: int = 0
    most: int | None = None


Written = JsonSchema | Regex | Lark | Gbnf  # what a client may have written


def written_parts(grammar: Grammar) -> list[Written]:
    match grammar:
        case JsonSchema() | Regex() | Lark() | Gbnf():
            return [grammar]
        case Concatenation(nodes) | Alternation(nodes):
            return [part for node in nodes for part in written_parts(node)]
        case Repeat(part):
            return written_parts(part)
        case _:
            return []


def optional(part: Grammar) -> Grammar:
    return Repeat(part, 0, 1)


def either(options: Sequence[Grammar]) -> Grammar:
    return options[0] if len(options) == 1 else Alternation(tuple(options))


NODES: Final[tuple[type[Grammar], ...]] = (
    *(
        Literal,
        Token,
        Text,
        Until,
        JsonSchema,
        Regex,
        Lark,
        Gbnf,
        Concatenation,
        Alternation,
        Repeat,
    ),
)
_NODES: Final = {node.__name__: node for node in NODES}


def to_plain(node: Grammar, depth: int = 0) -> list[Any]:
    """The tree as lists, texts and numbers; raises InvalidGrammar for one too deep to be sent."""
    if depth > MAX_DEPTH:
        raise InvalidGrammar(f"the grammar is nested deeper than {MAX_DEPTH} levels")
    if isinstance(node, Literal):  # of which there may be ten thousand
        return ["Literal", node.text]
    values = (getattr(node, field.name) for field in fields(node))  # type: ignore[arg-type]
    return [type(node).__name__, *(_plain_value(value, depth + 1) for value in values)]


def _plain_value(value: Any, depth: int) -> Any:
    if isinstance(value, Grammar):
        return to_plain(value, depth)
    return [to_plain(part, depth) for part in value] if isinstance(value, tuple) else value


def from_plain(plain: list[Any], depth: int = 0) -> Grammar:
    """The tree of what to_plain() gave; raises ValueError for anything else."""
    if depth <= MAX_DEPTH and len(plain) == 2 and plain[0] == "Literal":
        return Literal(plain[1])
    if depth > MAX_DEPTH or not plain or not isinstance(plain[0], str) or plain[0] not in _NODES:
        raise ValueError("the message contains no grammar that this engine supports")
    return _NODES[plain[0]](*(_value(value, depth + 1) for value in plain[1:]))


def _value(value: Any, depth: int) -> Any:
    if not isinstance(value, list):
        return value
    if value and isinstance(value[0], str):
        return from_plain(value, depth)
    return tuple(from_plain(part, depth) for part in value)
