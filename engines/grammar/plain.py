"""A grammar as nested lists, for the wire: `[class, field, ...]`."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final

from engines.errors import InvalidGrammar
from engines.grammar.tree import MAX_DEPTH, NODES, Grammar, Literal

_NODES: Final = {node.__name__: node for node in NODES}


def to_plain(node: Grammar, depth: int = 0) -> list[Any]:
    """Lists, texts and numbers only; raises InvalidGrammar for one too deep to be sent."""
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
    """The tree again; raises ValueError for what no tree was made into."""
    if depth <= MAX_DEPTH and len(plain) == 2 and plain[0] == "Literal":
        return Literal(plain[1])
    if depth > MAX_DEPTH or not plain or not isinstance(plain[0], str) or plain[0] not in _NODES:
        raise ValueError("the message holds no grammar that this engine knows")
    return _NODES[plain[0]](*(_value(value, depth + 1) for value in plain[1:]))


def _value(value: Any, depth: int) -> Any:
    if not isinstance(value, list):
        return value
    if value and isinstance(value[0], str):
        return from_plain(value, depth)
    return tuple(from_plain(part, depth) for part in value)
