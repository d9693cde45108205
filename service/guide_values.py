"""Whether one given value, of an `enum` or a `const`, is valid under a folded schema."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from service.guide_fold import Conflict, fold, resolve

_IS: Final[Mapping[str, Callable[[Any], bool]]] = {
    "null": lambda v: v is None,
    "boolean": lambda v: isinstance(v, bool),
    "string": lambda v: isinstance(v, str),
    "array": lambda v: isinstance(v, list),
    "object": lambda v: isinstance(v, dict),
    "number": lambda v: isinstance(v, int | float) and not isinstance(v, bool),
    "integer": lambda v: (
        (isinstance(v, int) and not isinstance(v, bool))
        or (isinstance(v, float) and v.is_integer())
    ),
}

_BOUNDS: Final[Mapping[str, tuple[str, Callable[[Any, Any], bool]]]] = {
    "minimum": ("number", lambda v, bound: v >= bound),
    "maximum": ("number", lambda v, bound: v <= bound),
    "exclusiveMinimum": ("number", lambda v, bound: v > bound),
    "exclusiveMaximum": ("number", lambda v, bound: v < bound),
    "multipleOf": ("number", lambda v, bound: v % bound == 0),
    "minLength": ("string", lambda v, bound: len(v) >= bound),
    "maxLength": ("string", lambda v, bound: len(v) <= bound),
    "pattern": ("string", lambda v, bound: re.search(bound, v) is not None),
    "minItems": ("array", lambda v, bound: len(v) >= bound),
    "maxItems": ("array", lambda v, bound: len(v) <= bound),
    "minProperties": ("object", lambda v, bound: len(v) >= bound),
    "maxProperties": ("object", lambda v, bound: len(v) <= bound),
    "required": ("object", lambda v, bound: all(name in v for name in bound)),
    "format": ("string", lambda v, bound: True),
}


def admits(schema: Any, value: Any, root: Mapping[str, Any]) -> bool:
    """Whether it is valid; raises Conflict if the schema has a keyword that is not weighed here."""
    if isinstance(schema, bool):
        return schema
    folded = fold(schema, root) if schema else {}
    if "$ref" in folded:
        return admits(resolve(folded["$ref"], root), value, root)
    return all(_holds(key, bound, value, root) for key, bound in folded.items())


def _holds(key: str, bound: Any, value: Any, root: Mapping[str, Any]) -> bool:
    try:
        if key == "type":
            names = bound if isinstance(bound, list) else [bound]
            return any(_IS[name](value) for name in names)
        if key == "enum":
            return value in bound
        if key == "anyOf":
            return any(admits(variant, value, root) for variant in bound)
        if key == "nullable":
            return True
        kind, holds = _BOUNDS[key]
        return not _IS[kind](value) or holds(value, bound)
    except KeyError:
        raise Conflict(f"{key} beside enum or const is not supported; leave it out") from None
    except (TypeError, re.error, ZeroDivisionError):
        raise Conflict(f"{key} has an invalid value") from None
