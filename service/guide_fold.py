"""Several schemas that all hold → one; and whether two can never hold together."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import combinations, product
from typing import Any, Final
from urllib.parse import unquote

_OF_DOCUMENTS: Final = ("$anchor", "$comment", "$defs", "$id", "$schema", "definitions")
_OF_READERS: Final = ("default", "deprecated", "description", "example", "examples", "title")
_OF_OPENAPI: Final = ("discriminator", "externalDocs", "readOnly", "writeOnly", "xml")
ANNOTATIONS: Final = frozenset((*_OF_DOCUMENTS, *_OF_READERS, *_OF_OPENAPI))
_MAX_FOLDS: Final = 50
_MAX_VARIANTS: Final = 200

_LARGEST: Final = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_SMALLEST: Final = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")

Schema = Mapping[str, Any]


class Conflict(ValueError):
    """Schemas that cannot be put together; the message says why."""


def resolve(pointer: Any, root: Schema) -> Any:
    """What a reference points to; raises Conflict if that is nothing in this document."""
    found: Any = root
    if not isinstance(pointer, str) or (pointer != "#" and not pointer.startswith("#/")):
        raise Conflict(f"$ref {pointer!r} does not point into the schema; use '#/$defs/...'")
    for step in unquote(pointer[2:]).split("/") if pointer != "#" else ():
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping) and name in found:
            found = found[name]
        elif isinstance(found, list) and name.isdecimal() and int(name[:9]) < len(found):
            found = found[int(name[:9])]
        else:
            raise Conflict(f"$ref {pointer!r} points to nothing")
    return found


def fold(schema: Schema, root: Schema, depth: int = 0) -> dict[str, Any]:
    """The schema without annotations, `allOf` and `const`; `$ref` and `anyOf` stand alone in it.

    A reference with nothing beside it stays; else it is replaced by what it points to.
    """
    if depth > _MAX_FOLDS:
        raise Conflict("its references never end")
    plain = {k: v for k, v in schema.items() if k not in ANNOTATIONS}
    _check_kinds(plain)
    parts: list[Any] = plain.pop("allOf", [])
    parts = [part for part in parts if part is not True]
    if "$ref" in plain and (parts or len(plain) > 1):
        parts = [resolve(plain.pop("$ref"), root), *parts]
    elif not plain and len(parts) == 1:
        return fold(_object(parts[0]), root, depth + 1)
    elif "$ref" in plain:
        _check_ends(plain["$ref"], root)
    whole = reduce(lambda a, b: _merged(a, b), (_whole(p, root, depth) for p in parts), plain)
    return _distributed(_with_enum(whole), root)


_KINDS: Final[Mapping[str, tuple[type | tuple[type, ...], str]]] = {
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "enum", "prefixItems"), (list, "a list")),
    **dict.fromkeys(("properties", "patternProperties"), (dict, "an object")),
    **dict.fromkeys((*_LARGEST, *_SMALLEST, "multipleOf"), ((int, float), "a number")),
    **dict.fromkeys(("items", "propertyNames"), ((dict, bool, list), "a schema")),
    **dict.fromkeys(("additionalProperties", "additionalItems"), ((dict, bool), "a schema")),
    **dict.fromkeys(("pattern", "$ref", "format"), (str, "a string")),
    "type": ((str, list), "a name or a list of names"),
    "required": (list, "a list of names"),
}


def _check_kinds(schema: Schema) -> None:
    """Raise Conflict for a keyword whose value is of another kind than it must be."""
    for key, (kinds, words) in _KINDS.items():
        value = schema.get(key)
        is_number = kinds == (int, float)
        is_wrong = not isinstance(value, kinds) or (is_number and isinstance(value, bool))
        if key in schema and is_wrong:
            raise Conflict(f"{key} must be {words}")
    for key in ("type", "required"):
        names = schema.get(key, [])
        if isinstance(names, list) and not all(isinstance(name, str) for name in names):
            raise Conflict(f"{key} must be a list of names")


def _object(schema: Any) -> Schema:
    if isinstance(schema, Mapping):
        return schema
    raise Conflict("it allows nothing" if schema is False else "a schema must be an object")


def _check_ends(pointer: Any, root: Schema) -> None:
    """Raise Conflict for references that go round without meeting a schema."""
    for _ in range(_MAX_FOLDS):
        target = resolve(pointer, root)
        if not isinstance(target, Mapping) or "$ref" not in target:
            return
        pointer = target["$ref"]
    raise Conflict("its references never end")


def _whole(part: Any, root: Schema, depth: int) -> dict[str, Any]:
    """A part without references, so that it can be merged."""
    flat = fold(_object(part), root, depth + 1)
    while "$ref" in flat:
        depth += 1
        flat = fold(_object(resolve(flat["$ref"], root)), root, depth)
    return flat


def _merged(a: Schema, b: Schema) -> dict[str, Any]:
    """Both at once."""
    both = {**a, **b}
    for key in a.keys() & b.keys():
        if key in ("properties", "patternProperties", "additionalProperties"):
            continue
        both[key] = _both(key, a[key], b[key])
    if "properties" in both or "additionalProperties" in both:
        both.update(_merged_properties(a, b))
    return both


def _both(key: str, a: Any, b: Any) -> Any:
    if a == b:
        return a
    try:
        if key in _LARGEST:
            return max(a, b)
        if key in _SMALLEST:
            return min(a, b)
    except TypeError:
        raise Conflict(f"{key} must be a number") from None
    if key == "required":
        return [*a, *(name for name in b if name not in a)]
    if key == "type":
        return _both_types(a, b)
    if key == "enum":
        return [value for value in a if any(_same(value, other) for other in b)]
    if key == "const":
        raise Conflict("allOf has two values for const")
    if key in ("items", "propertyNames"):
        return {"allOf": [a, b]}
    if key == "anyOf":
        pairs = [{"allOf": [x, y]} for x, y in product(a, b)]
        if len(pairs) <= _MAX_VARIANTS:
            return pairs
    raise Conflict(f"{key} is said twice with different values")


def _both_types(a: Any, b: Any) -> list[str]:
    ours, theirs = _list(a), _list(b)
    both = [name for name in ours if name in theirs or (name == "integer" and "number" in theirs)]
    if "number" in ours and "integer" in theirs and "integer" not in both:
        both.append("integer")
    if not both:
        raise Conflict(f"nothing has the type {a!r} and {b!r}")
    return both


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _merged_properties(a: Schema, b: Schema) -> dict[str, Any]:
    if "patternProperties" in a or "patternProperties" in b:
        if a.get("patternProperties", {}) and b.keys() & _OF_PROPERTIES:
            raise Conflict("patternProperties cannot be put together with other properties")
        if b.get("patternProperties", {}) and a.keys() & _OF_PROPERTIES:
            raise Conflict("patternProperties cannot be put together with other properties")
    ours, theirs = _properties(a), _properties(b)
    properties: dict[str, Any] = {}
    for name in [*ours, *(name for name in theirs if name not in ours)]:
        parts = [
            known[name] if name in known else schema.get("additionalProperties", True)
            for schema, known in ((a, ours), (b, theirs))
        ]
        properties[name] = _all_of(parts)
    rest = _all_of([schema.get("additionalProperties", True) for schema in (a, b)])
    merged: dict[str, Any] = {"properties": properties} if properties else {}
    if "additionalProperties" in a or "additionalProperties" in b:
        merged["additionalProperties"] = rest
    return merged


_OF_PROPERTIES: Final = frozenset(("properties", "patternProperties", "additionalProperties"))


def _properties(schema: Schema) -> Schema:
    properties = schema.get("properties", {})
    if not isinstance(properties, Mapping):
        raise Conflict("properties must be an object")
    return properties


def _all_of(parts: list[Any]) -> Any:
    if False in [part for part in parts if isinstance(part, bool)]:
        return False
    real = [part for part in parts if part is not True]
    return {"allOf": real} if len(real) > 1 else real[0] if real else True


def _with_enum(schema: dict[str, Any]) -> dict[str, Any]:
    """`const` as an `enum` of one."""
    if "enum" in schema and not isinstance(schema["enum"], list):
        raise Conflict("enum must be a list")
    if "const" in schema:
        const = schema.pop("const")
        schema["enum"] = [v for v in schema.get("enum", [const]) if _same(v, const)]
    return schema


def _distributed(schema: dict[str, Any], root: Schema) -> dict[str, Any]:
    """What stands beside `anyOf` or `oneOf` goes into each variant."""
    for key in ("oneOf", "anyOf"):
        if key not in schema:
            continue
        variants = schema[key]
        if not isinstance(variants, list) or not variants:
            raise Conflict(f"{key} must be a list of schemas")
        rest = {name: value for name, value in schema.items() if name != key}
        if not rest:
            return schema
        if key == "oneOf" and not are_disjoint(variants, root):
            raise Conflict("oneOf's variants may overlap; use anyOf")
        return {"anyOf": [_variant(rest, v, root) for v in variants if v is not False]}
    return schema


def _variant(rest: Schema, variant: Any, root: Schema) -> Any:
    return dict(rest) if variant is True else {"allOf": [rest, variant]}


# Disjoint variants: by type, by value, or by a property that both must have.


def are_disjoint(variants: Sequence[Any], root: Schema) -> bool:
    """Whether it is certain that no value is valid under two of them."""
    flat = [_whole(variant, root, 0) for variant in variants if isinstance(variant, Mapping)]
    if len(flat) > _MAX_VARIANTS or len(flat) < len([v for v in variants if v is not False]):
        return False
    return all(_differ(a, b, root) for a, b in combinations(flat, 2))


def _differ(a: Schema, b: Schema, root: Schema) -> bool:
    if "enum" in a and "enum" in b:
        return not any(_same(x, y) for x in a["enum"] for y in b["enum"])
    types = [_kinds(schema) for schema in (a, b)]
    if types[0] and types[1] and not types[0] & types[1]:
        return True
    if not types[0] == types[1] == {"object"}:
        return False
    required = set(a.get("required", ())) & set(b.get("required", ()))
    ours, theirs = _properties(a), _properties(b)
    return any(
        _differ(_whole(ours[name], root, 0), _whole(theirs[name], root, 0), root)
        for name in required & ours.keys() & theirs.keys()
        if isinstance(ours[name], Mapping) and isinstance(theirs[name], Mapping)
    )


def _kinds(schema: Schema) -> set[str]:
    """The types a schema allows, integers being numbers; empty if any."""
    if "enum" in schema:
        return {_kind(value) for value in schema["enum"]}
    names = [name for name in _list(schema.get("type", [])) if isinstance(name, str)]
    if not names and "properties" in schema and "required" in schema:
        names = ["object"]  # as it will be enforced
    return {"number" if name == "integer" else name for name in names}


def _kind(value: Any) -> str:
    names = {bool: "boolean", int: "number", float: "number", str: "string", type(None): "null"}
    return names.get(type(value), "array" if isinstance(value, list) else "object")


def _same(a: Any, b: Any) -> bool:
    return json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)
