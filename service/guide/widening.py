"""What is left out of a schema's grammar where `strict` does not ask for all of it.

A keyword that cannot be enforced is left out of its schema, which then allows more, and is noted:
the client learns it from a header. What is left is enforced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any, Final

from service.guide.pattern import is_enforceable

MAX_INTEGER: Final = 2**53  # beyond, the engine does not tell numbers apart: it has doubles
OPEN: Final = "$open"  # of a node that may have properties which no keyword left in it names

# Keywords that no grammar has, and what to say instead.
NO: Final = {
    "not": "say what is allowed instead",
    **dict.fromkeys(("if", "then", "else"), "use anyOf"),
    **dict.fromkeys(("dependentSchemas", "dependentRequired", "dependencies"), "use anyOf"),
    **dict.fromkeys(("contains", "minContains", "maxContains"), "use items or prefixItems"),
    "unevaluatedItems": "use items",
    "unevaluatedProperties": "use additionalProperties",
    "$dynamicRef": "use $ref",
    "$recursiveRef": "use $ref",
}
# Of these, those that name properties of the object: where one is left out, the object is open.
OPENERS: Final = frozenset(
    (*("if", "then", "else"), *("dependentSchemas", "dependentRequired", "dependencies"))
) | {"$dynamicRef", "$recursiveRef", OPEN}
MAX_PATTERNS: Final = 32  # of an object's names: each two are compared

_MAX_NOTES: Final = 8
_TYPES: Final = ("object", "array", "string", "number", "integer", "boolean", "null")
Node = Mapping[str, Any]


class Widening:
    """What was left out of the schemas of a request, by place."""

    def __init__(self) -> None:
        self._keywords: dict[str, None] = {}
        self._places: dict[str, None] = {}

    def note(self, place: str, keyword: str) -> None:
        self._keywords[keyword] = None
        if len(self._places) <= _MAX_NOTES:
            self._places[f"{place}: {keyword}"] = None

    @property
    def keywords(self) -> str:
        """The keywords alone, for a log: no client's text."""
        return ", ".join(self._keywords)

    @property
    def text(self) -> str:
        """The places with their keywords, in ASCII, for a header."""
        shown = [*self._places][:_MAX_NOTES]
        more = ["..."] if len(self._places) > _MAX_NOTES else []
        return "; ".join([*shown, *more]).encode("unicode_escape").decode("ascii")


def narrowed(key: str, value: Any) -> Any:
    """A bound that the engine can tell: up to 2^53, which allows no more than the schema."""
    if key not in _BOUNDS or not _is_number(value):
        return value
    if key in ("minimum", "exclusiveMinimum"):
        return max(value, -MAX_INTEGER)
    return min(value, MAX_INTEGER)


def is_large(value: Any) -> bool:
    """Whether a value has a number that the engine does not tell from others."""
    waiting: list[Any] = [value]
    while waiting:
        item = waiting.pop()
        if _is_number(item) and abs(item) > MAX_INTEGER and isinstance(item, int):
            return True
        if isinstance(item, list | dict):
            waiting += item.values() if isinstance(item, dict) else item
    return False


def widened(node: Node, resolves: Callable[[Any], bool]) -> tuple[Node, list[str]]:
    """The node without what cannot be enforced, and the keywords that were left out of it.

    What depends on the schemas around the node is left to those who see them.
    """
    wrong = [key for key, value in node.items() if not _is_enforceable(key, value, resolves)]
    if "enum" in node and "type" in node and "enum" not in wrong and "type" not in wrong:
        wrong += [] if any(_is_of(node["type"], value) for value in node["enum"]) else ["type"]
    if any(key in node for key in ("minProperties", "maxProperties")) and _has_optional(node):
        wrong += [key for key in ("minProperties", "maxProperties") if key in node]
    unknown = [key for key in node if key in NO and (key, node[key]) != _CLOSED]
    if not wrong and "required" not in node:
        return node, unknown
    kept = {key: value for key, value in node.items() if key not in wrong}
    if "$ref" in wrong:
        kept[OPEN] = True
    if "patternProperties" in wrong and "additionalProperties" in kept:
        kept["additionalProperties"] = True
    if "required" in kept and (names := _named_in_vain(kept)):
        wrong.append("required")
        kept["required"] = [name for name in kept["required"] if name not in names]
    # The unknown stay: no grammar is made of them, but they tell whether the object is closed.
    return kept, wrong + unknown


def _has_optional(node: Node) -> bool:
    """Whether an object names properties that it need not have: then none are counted."""
    known, required = node.get("properties"), node.get("required")
    if not isinstance(known, dict):
        return False
    return not isinstance(required, list) or any(name not in required for name in known)


def _named_in_vain(node: Node) -> set[Any]:
    """Required names that are none, or that the same object does not allow."""
    names = {name for name in node["required"] if not isinstance(name, str)}
    if node.get("additionalProperties") is False and not node.get("patternProperties"):
        known = node.get("properties", {})
        names |= {name for name in node["required"] if name not in known}
    return names


def _is_enforceable(key: str, value: Any, resolves: Callable[[Any], bool]) -> bool:
    if key == "$ref":
        return resolves(value)
    return key not in _VALID or _VALID[key](value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_bound(value: Any) -> bool:
    return _is_number(value) and abs(value) <= MAX_INTEGER


def _is_least(value: Any) -> bool:
    return isinstance(value, bool) or (_is_number(value) and value <= MAX_INTEGER)


def _is_most(value: Any) -> bool:
    return isinstance(value, bool) or (_is_number(value) and value >= -MAX_INTEGER)


def _is_size(value: Any) -> bool:
    return _is_bound(value) and value >= 0 and value == int(value)


def _is_schema(value: Any) -> bool:
    return isinstance(value, dict | bool)


def _is_type(value: Any) -> bool:
    names = value if isinstance(value, list) else [value]
    return bool(names) and all(isinstance(name, str) and name in _TYPES for name in names)


def _are_names(value: Any) -> bool:
    """Strings in a list, as far as it is one: the others are left out one by one."""
    return isinstance(value, list) and all(not isinstance(name, dict | list) for name in value)


def _is_union(value: Any) -> bool:
    return isinstance(value, list) and bool(value)


def _are_patterns(value: Any) -> bool:
    """Patterns of names that are known to be disjoint: they begin with texts that differ."""
    if not isinstance(value, dict) or not all(map(is_enforceable, value)):
        return False
    return len(value) < 2 or (
        len(value) <= MAX_PATTERNS and _are_apart([_beginning(pattern) for pattern in value])
    )


def _beginning(pattern: str) -> str:
    """The plain characters that every match begins with."""
    if not pattern.startswith("^") or "|" in pattern:
        return ""
    plain = ""
    for char in pattern[1:]:
        if not (char.isalnum() or char in "_-:/@ "):
            return plain[:-1] if char in "*?{" else plain
        plain += char
    return plain


def _are_apart(beginnings: list[str]) -> bool:
    return all(one and not other.startswith(one) for one, other in pairwise(sorted(beginnings)))


def _types_of(value: Any) -> Iterator[str]:
    if isinstance(value, bool):
        yield "boolean"
    elif _is_number(value):
        yield "number"
        if value == int(value):
            yield "integer"
    else:
        kinds = {str: "string", dict: "object", list: "array", type(None): "null"}
        yield kinds[type(value)]


def _is_of(types: Any, value: Any) -> bool:
    names = types if isinstance(types, list) else [types]
    return any(name in names for name in _types_of(value))


_CLOSED: Final = ("unevaluatedProperties", False)  # objects are closed without it
_BOUNDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_VALID: Final[Mapping[str, Callable[[Any], bool]]] = {
    "type": _is_type,
    "enum": lambda value: _is_union(value) and not is_large(value),
    "const": lambda value: not is_large(value),
    "required": _are_names,
    "properties": lambda value: isinstance(value, dict),
    "patternProperties": _are_patterns,
    "prefixItems": lambda value: isinstance(value, list),
    "items": lambda value: _is_schema(value) or isinstance(value, list),
    **dict.fromkeys(("additionalItems", "additionalProperties"), _is_schema),
    "allOf": lambda value: isinstance(value, list),
    **dict.fromkeys(("anyOf", "oneOf"), _is_union),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), _is_size),
    **dict.fromkeys(("minProperties", "maxProperties"), _is_size),
    **dict.fromkeys(("minimum", "exclusiveMinimum"), _is_least),
    **dict.fromkeys(("maximum", "exclusiveMaximum"), _is_most),
    "multipleOf": lambda value: _is_bound(value) and value > 0,
    "pattern": is_enforceable,
}
