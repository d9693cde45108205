"""Which grammars need no trial.

No list of what is dangerous is whole, but a list of what is not can be: schemas of ordinary
models, without patterns, parts to be merged, long repetitions and long numbers (1e298 among an
integer's values overflows a stack). The library takes time in proportion to their text, and to the
square of the properties of one object: 0.4 s for the 2,000 that are let through, beside the step
loop and without the interpreter.
"""

from __future__ import annotations

import json
from typing import Any, Final

from engines.grammar.tree import JsonSchema, Written

MAX_SCHEMAS: Final = 2_000  # schemas within schemas, of all parts together
MAX_CHARS: Final = 200_000
MAX_ITEMS: Final = 100
MAX_LENGTH: Final = 10_000

_NAMES: Final = ("type", "format", "required")
_NUMBERS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_BOUNDED: Final = {
    **dict.fromkeys(("minItems", "maxItems"), MAX_ITEMS),
    **dict.fromkeys(("minLength", "maxLength"), MAX_LENGTH),
}
_MAX_INTEGER: Final = 2**31
_MAX_DIGITS: Final = 10  # of a number with a point


def is_harmless(parts: list[Written]) -> bool:
    """Whether all that a client may have written is of the ordinary kind."""
    schemas = [part.schema for part in parts if isinstance(part, JsonSchema)]
    if len(schemas) < len(parts) or sum(map(len, schemas)) > MAX_CHARS:
        return False
    waiting: list[Any] = [json.loads(schema) for schema in schemas]
    num_schemas = 0
    while waiting:
        schema = waiting.pop()
        num_schemas += 1
        if num_schemas > MAX_SCHEMAS or not isinstance(schema, dict | bool):
            return False
        if isinstance(schema, dict):
            inner = _inner(schema)
            if inner is None:
                return False
            waiting += inner
    return True


def _inner(schema: dict[str, Any]) -> list[Any] | None:
    """The schemas within this one; None where a keyword or its value is not known as harmless."""
    inner: list[Any] = []
    own = schema.keys() - {"$defs"}
    for key, value in schema.items():
        if key in _NAMES:
            continue
        if key in _BOUNDED:
            if not isinstance(value, int) or value > _BOUNDED[key]:
                return None
        elif key in _NUMBERS or key in ("const", "enum"):
            if not all(map(_is_short, value if isinstance(value, list) else (value,))):
                return None
        elif key in ("properties", "$defs") and isinstance(value, dict):
            inner += value.values()
        elif key == "items" or (key == "additionalProperties" and _is_map(schema)):
            inner.append(value)
        elif key == "anyOf" and isinstance(value, list) and own == {"anyOf"}:
            inner += value
        elif not (key == "$ref" and own == {"$ref"}):
            return None
    return inner


def _is_short(value: Any) -> bool:
    """A text, or a number that is not written at length."""
    if isinstance(value, float):
        return len(str(value)) <= _MAX_DIGITS and "e" not in str(value)
    if isinstance(value, int):
        return abs(value) <= _MAX_INTEGER
    return value is None or isinstance(value, str)


def _is_map(schema: dict[str, Any]) -> bool:
    """Whether an object has names that must differ from its properties', which is costly."""
    return schema["additionalProperties"] is False or not schema.keys() & {"properties", "required"}
