"""One type's keywords, as the grammar enforces them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from math import ceil, floor, isfinite
from typing import Any, Final

from service.guide_pattern import PatternError, json_pattern

Schema = Mapping[str, Any]
Child = Callable[[Any, str], Any]  # rewrites a schema below, reached by this step

_MAX_INTEGER: Final = 2**62
_MAX_MULTIPLES: Final = 5000
_MAX_LENGTH: Final = 20_000  # longer ones take too long to compile
_FORMATS: Final = frozenset(
    ("date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid")
)
_OF_OBJECTS: Final = (
    *("additionalProperties", "maxProperties", "minProperties", "patternProperties"),
    *("properties", "propertyNames", "required"),
)
_OF_ARRAYS: Final = (
    *("additionalItems", "items", "maxItems", "minItems"),
    *("prefixItems", "uniqueItems"),
)
_OF_NUMBERS: Final = ("exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf")
_KEYWORDS: Final[Mapping[str, frozenset[str]]] = {
    "object": frozenset(_OF_OBJECTS),
    "array": frozenset(_OF_ARRAYS),
    "string": frozenset(("maxLength", "minLength", "pattern")),
    "number": frozenset(_OF_NUMBERS),
}
_TYPES: Final = ("object", "array", "string", "number", "integer", "boolean", "null")


class Unenforceable(ValueError):
    """Keywords that cannot have their effect; the message says which and why."""


def type_names(schema: Schema) -> list[str]:
    """The types allowed: those named, or those that the other keywords speak of; none for any."""
    named = schema.get("type")
    if named is None:
        return [name for name, keywords in _KEYWORDS.items() if keywords & schema.keys()]
    names = named if isinstance(named, list) else [named]
    for name in names:
        if name not in _TYPES:
            raise Unenforceable(f"type {name!r} is unknown; use one of {', '.join(_TYPES)}")
    if not names:
        raise Unenforceable("type must not be empty")
    if schema.get("nullable") is True and "null" not in names:
        names = [*names, "null"]
    return [name for name in names if name != "integer" or "number" not in names]


def of_type(name: str, schema: Schema, child: Child) -> dict[str, Any]:
    """The schema for one of its types; raises Unenforceable."""
    if name == "object":
        return _object(schema, child)
    if name == "array":
        return _array(schema, child)
    if name == "string":
        return _string(schema)
    if name == "integer":
        return _integer(schema)
    if name == "number":
        return _number(schema)
    return {"type": name}


# Numbers


def _integer(schema: Schema) -> dict[str, Any]:
    lows = [ceil(v) for v in _numbers(schema, "minimum")]
    lows += [floor(v) + 1 for v in _numbers(schema, "exclusiveMinimum")]
    highs = [floor(v) for v in _numbers(schema, "maximum")]
    highs += [ceil(v) - 1 for v in _numbers(schema, "exclusiveMaximum")]
    rewritten: dict[str, Any] = {"type": "integer"}
    if lows:
        rewritten["minimum"] = max(lows)
    if highs:
        rewritten["maximum"] = min(highs)
    if any(abs(bound) > _MAX_INTEGER for bound in (*lows, *highs)):
        raise Unenforceable(f"bounds beyond {_MAX_INTEGER} are not supported")
    if lows and highs and max(lows) > min(highs):
        raise Unenforceable("no integer is within its bounds")
    for step in _numbers(schema, "multipleOf"):
        if step <= 0 or step != int(step):
            raise Unenforceable("multipleOf must be a whole number above 0")
        return _multiples(int(step), max(lows, default=None), min(highs, default=None))
    return rewritten


def _multiples(step: int, low: int | None, high: int | None) -> dict[str, Any]:
    """A grammar counts in steps without bounds; within bounds it needs the values."""
    if low is None and high is None:
        return {"type": "integer", "multipleOf": step}
    if low is None or high is None:
        raise Unenforceable("multipleOf beside one bound only is not supported; give both bounds")
    values = range(-(-low // step) * step, high + 1, step)
    if not 0 < len(values) <= _MAX_MULTIPLES:
        raise Unenforceable(
            f"{len(values)} multiples of {step} are within the bounds; 1 to {_MAX_MULTIPLES} "
            "are supported"
        )
    return {"enum": list(values)}


def _number(schema: Schema) -> dict[str, Any]:
    if "multipleOf" in schema:
        raise Unenforceable("multipleOf is supported for integers only")
    rewritten: dict[str, Any] = {"type": "number"}
    for key in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
        for bound in _numbers(schema, key):
            rewritten[key] = bound
    return rewritten


def _numbers(schema: Schema, key: str) -> list[float]:
    """The keyword's value, if it is there."""
    if key not in schema:
        return []
    value = schema[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise Unenforceable(f"{key} must be a number")
    return [value]


def _count(schema: Schema, key: str) -> int | None:
    value: Any = schema.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
        raise Unenforceable(f"{key} must be a whole number")
    if value < 0:
        raise Unenforceable(f"{key} must not be below 0")
    return int(value)


def _counts(schema: Schema, what: str) -> dict[str, int]:
    """min… and max… of lengths, items or properties, as far as they are there."""
    low, high = _count(schema, f"min{what}"), _count(schema, f"max{what}")
    if low is not None and high is not None and low > high:
        raise Unenforceable(f"min{what} is above max{what}")
    bounds = {f"min{what}": low or None, f"max{what}": high}
    return {key: value for key, value in bounds.items() if value is not None}


# Strings


def _string(schema: Schema) -> dict[str, Any]:
    bounds = _counts(schema, "Length")
    if max(bounds.values(), default=0) > _MAX_LENGTH:
        raise Unenforceable(f"lengths above {_MAX_LENGTH} are not supported; leave them out")
    pattern = schema.get("pattern")
    if pattern is not None and not isinstance(pattern, str):
        raise Unenforceable("pattern must be a string")
    if pattern is not None and pattern.removeprefix("^").removesuffix("$") not in ("", ".*"):
        return {"type": "string", "pattern": _pattern(pattern, bounds)}
    if bounds:
        return {"type": "string", **bounds}
    if schema.get("format") in _FORMATS:
        return {"type": "string", "format": schema["format"]}
    return {"type": "string"}


def _pattern(pattern: str, bounds: Mapping[str, int]) -> str:
    try:
        return json_pattern(pattern, bounds.get("minLength", 0), bounds.get("maxLength"))
    except PatternError as error:
        raise Unenforceable(f"pattern {pattern[:100]!r}: {error}") from error


# Arrays


def _array(schema: Schema, child: Child) -> dict[str, Any]:
    bounds = _counts(schema, "Items")
    if schema.get("uniqueItems") is True and bounds.get("maxItems", 2) > 1:
        raise Unenforceable("uniqueItems is not supported; leave it out")
    prefix, rest = schema.get("prefixItems", []), schema.get("items", True)
    if isinstance(rest, list):  # as drafts before 2020 had it
        prefix, rest = rest, schema.get("additionalItems", True)
    if not isinstance(prefix, list):
        raise Unenforceable("prefixItems must be a list")
    limit = bounds.get("maxItems")
    if rest is False or (limit is not None and limit <= len(prefix)):
        return _tuple(prefix, bounds, child)
    rewritten: dict[str, Any] = {"type": "array", "items": child(rest, "items"), **bounds}
    if prefix:
        rewritten["prefixItems"] = [child(p, f"prefixItems[{i}]") for i, p in enumerate(prefix)]
        rewritten["minItems"] = max(len(prefix), bounds.get("minItems", 0))
    return rewritten


def _tuple(prefix: list[Any], bounds: Mapping[str, int], child: Child) -> dict[str, Any]:
    """An array that ends where its prefix does, or before."""
    low, high = bounds.get("minItems", 0), min(len(prefix), bounds.get("maxItems", len(prefix)))
    if low > len(prefix):
        raise Unenforceable("minItems is above the number of prefixItems, and no more are allowed")
    if high == 0:
        return {"type": "array", "maxItems": 0}
    items = [child(part, f"prefixItems[{i}]") for i, part in enumerate(prefix[:high])]
    return {"type": "array", "prefixItems": items, "items": False, "minItems": high}


# Objects


def _object(schema: Schema, child: Child) -> dict[str, Any]:
    properties, required = _properties(schema), _required(schema)
    patterns, rest = schema.get("patternProperties", {}), schema.get("additionalProperties")
    names = schema.get("propertyNames")
    if patterns or names not in (None, True, {}):
        return _keyed(schema, properties, required, child)
    if rest is None and not properties and not required:
        rest = True
    rewritten: dict[str, Any] = {"type": "object"}
    if properties:
        rewritten["properties"] = {
            name: child(part, f"properties.{name}") for name, part in properties.items()
        }
    if required:
        rewritten["required"] = required
    is_open = rest is not None and rest is not False
    rewritten["additionalProperties"] = child(rest, "additionalProperties") if is_open else False
    rewritten.update(_property_counts(schema, properties, required, is_open=is_open))
    return rewritten


def _properties(schema: Schema) -> dict[str, Any]:
    """The properties, those included that are only required; none that must not be there."""
    properties, rest = schema.get("properties", {}), schema.get("additionalProperties")
    if not isinstance(properties, Mapping):
        raise Unenforceable("properties must be an object")
    known = {name: part for name, part in properties.items() if part is not False}
    if len(known) < len(properties) and rest not in (None, False):
        raise Unenforceable("a property that is false needs additionalProperties: false")
    for name in _required(schema):
        if name not in known and "patternProperties" not in schema:
            if rest is False or name in properties:
                raise Unenforceable(f"it requires {name!r}, which is not allowed")
            known[name] = True if rest is None else rest
    return known


def _required(schema: Schema) -> list[str]:
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise Unenforceable("required must be a list of names")
    return list(dict.fromkeys(required))


def _property_counts(
    schema: Schema, properties: Schema, required: list[str], *, is_open: bool
) -> dict[str, int]:
    bounds = _counts(schema, "Properties")
    low, high = bounds.get("minProperties", 0), bounds.get("maxProperties")
    if high is not None and high < len(required):
        raise Unenforceable("maxProperties is below the number of required properties")
    if not is_open and low > len(properties):
        raise Unenforceable("minProperties is above the number of properties")
    # A grammar counts a name that is written twice as two.
    if is_open and low > max(1, len(required)):
        raise Unenforceable("minProperties above 1 needs additionalProperties: false or required")
    return bounds


def _keyed(schema: Schema, properties: Schema, required: list[str], child: Child) -> dict[str, Any]:
    """An object whose names follow patterns or `propertyNames`."""
    patterns = dict(schema.get("patternProperties", {}))
    if properties or required or (patterns and "propertyNames" in schema) or len(patterns) > 1:
        raise Unenforceable(
            "patternProperties and propertyNames are supported alone: one of them, one pattern, "
            "without properties and required"
        )
    rest = schema.get("additionalProperties")
    if not patterns:
        names = child(schema["propertyNames"], "propertyNames")
        rewritten = _named(names, child(True if rest is None else rest, "additionalProperties"))
    elif rest not in (None, False):
        raise Unenforceable("patternProperties needs additionalProperties: false")
    else:
        (pattern, part), *_ = patterns.items()
        value = child(part, "patternProperties")
        rewritten = {
            "type": "object",
            "patternProperties": {_pattern(pattern, {}): value},
            "additionalProperties": False,
        }
    return {**rewritten, **_property_counts(schema, properties, required, is_open=True)}


def _named(names: Schema, value: Any) -> dict[str, Any]:
    texts = [text for text in names.get("enum", ()) if isinstance(text, str)]
    pattern = "|".join(re.escape(text) for text in texts) if texts else names.get("pattern")
    if pattern is None:
        raise Unenforceable("propertyNames is supported with enum or pattern")
    pattern = _pattern(f"^(?:{pattern})$", {}) if texts else pattern
    return {"type": "object", "patternProperties": {pattern: value}, "additionalProperties": False}
