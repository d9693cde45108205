"""A client's JSON Schema → the same, closed: an object holds what it names and no more.

The engine enforces each keyword or refuses it by name. Here, in one pass, is done what it does not
do: objects are closed, references found, variants of `oneOf` told apart, OpenAPI's `nullable`
honoured; and what is known to be refused is refused with its place. The result may allow less than
the schema, never more, unless it is to be widened: then what cannot be enforced is left out
(widening.py). docs/decisions/0030-what-the-schema-pass-does.md has what the engine does
without each of these.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Any, Final, NoReturn

from engines.grammar.tree import JsonSchema
from service.errors import RequestError
from service.guide.document import MAX_VISITS, Composed, Document, Unenforceable
from service.guide.keywords import (
    AS_THEY_ARE,
    COMBINING,
    FORMATS,
    HEEDED,
    PLAIN,
    SIZES,
    UNIONS,
    is_nullable,
    least_multiple,
    num_states,
    typed,
)
from service.guide.pattern import engine_pattern, is_enforceable
from service.guide.widening import (
    MAX_INTEGER,
    MAX_PATTERNS,
    NO,
    OPENERS,
    Widening,
    is_large,
    narrowed,
    widened,
)
from service.work import Budget

_MAX_STEP: Final = 10_000  # of multipleOf, in its last digit; each step is a state
_MAX_NAMES: Final = 1_000  # of propertyNames
_MAX_PATH: Final = 300  # characters of a place that an error names

Place = tuple["Place | None", str]  # a schema's place: its parent's, and the step from there


def schema_grammar(
    schema: Any, field: str, budget: Budget | None = None, widening: Widening | None = None
) -> JsonSchema:
    """A grammar node of a JSON Schema; raises RequestError naming what cannot be enforced.

    With a widening, what cannot be enforced is left out and noted there. Raises OverBudget when
    reading the schema takes more steps than are left.
    """
    closer = _Closer(schema, field, budget or Budget(2 * MAX_VISITS, "steps"), widening)
    text = json.dumps(closer.run(), ensure_ascii=False, separators=(",", ":"))
    return JsonSchema(text, field)


class _Closer:
    """Closes one document: an object may hold what it names and no more."""

    def __init__(
        self, root: Any, field: str, budget: Budget, widening: Widening | None = None
    ) -> None:
        self._root = root
        self._field = field
        self._widening = widening
        self._document = Document(root, budget, is_lenient=widening is not None)
        self._names: dict[tuple[str, bool], str] = {}  # of references, by pointer and kind
        self._unwritten: deque[tuple[str, bool, str]] = deque()  # references that are only named
        self._step: Fraction | None = None  # the least multiple of all multipleOf that may meet

    def run(self) -> dict[str, Any]:
        try:
            self._document.check_size()
            return self._run()
        except Unenforceable as error:
            if self._widening is None:
                _refuse(self._field, str(error))
            self._widening.note(self._field, "all")
            kind = self._root.get("type") if isinstance(self._root, dict) else None
            return {"type": "object"} if kind == "object" else {}

    def _run(self) -> dict[str, Any]:
        body = self._schema(self._root, (None, ""))
        if body is False:
            self._refuse((None, ""), "it allows nothing")
        definitions: dict[str, Any] = {}
        while self._unwritten:  # some are met on the way
            pointer, is_part, name = self._unwritten.popleft()
            place: Place = (None, f" ({pointer[:100]})")
            write = self._part if is_part else self._schema
            definitions[name] = write(self._document.resolve(pointer), place)
        body = {} if body is True else body
        return {**body, "$defs": definitions} if definitions else body

    # A schema on its own is closed; a part may be combined with others that name more.

    def _schema(self, schema: Any, place: Place) -> Any:
        node = self._node(schema, place)
        if isinstance(node, bool):
            return node
        if "type" in node and PLAIN.issuperset(node):
            return self._values(node, place)
        if is_nullable(node):
            rest = {key: value for key, value in node.items() if key != "nullable"}
            return {"anyOf": [self._schema(rest, place), {"type": "null"}]}
        combining = [key for key in COMBINING if key in node]
        if len(combining) == 1 and not (HEEDED | OPENERS) & (node.keys() - set(combining)):
            return self._alone(combining[0], node, place)
        unions = [key for key in UNIONS if key in node]
        if len(unions) == 1:
            return self._variants(unions[0], node, place)
        if combining:
            written = self._written(node, place, is_part=True)
            return _closed(written, self._document.composed(node))
        return self._simple(node, place)

    def _simple(self, node: Mapping[str, Any], place: Place) -> Any:
        written, composed = self._written(node, place, is_part=False), Composed()
        composed.add(node)
        if "patternProperties" in written:
            written = {**_SHUT, **written}
        return _closed(written, composed)

    def _part(self, schema: Any, place: Place) -> Any:
        node = self._node(schema, place)
        if isinstance(node, bool):
            return node
        written = self._written(node, place, is_part=True)
        return {"anyOf": [written, {"type": "null"}]} if is_nullable(node) else written

    def _alone(self, key: str, node: Mapping[str, Any], place: Place) -> Any:
        """Close a schema that is only a reference, a union or parts."""
        if key == "$ref":
            return {"$ref": self._reference(node["$ref"], is_part=False)}
        parts = self._list(key, node[key], place)
        if key == "allOf" and len(parts) > 1:
            written = self._written(node, place, is_part=True)
            return _closed(written, self._document.composed(node))
        if key == "allOf":
            return self._schema(parts[0], (place, "allOf[0]")) if parts else True
        self._check_union(key, parts, place)
        return {"anyOf": [self._schema(p, (place, f"{key}[{i}]")) for i, p in enumerate(parts)]}

    def _variants(self, key: str, node: Mapping[str, Any], place: Place) -> Any:
        """Each variant is closed separately, including the keywords beside the union."""
        beside = {name: value for name, value in node.items() if name != key}
        written = self._written(beside, place, is_part=True)
        parts = self._list(key, node[key], place)
        self._check_union(key, parts, place)
        written["anyOf"] = [
            _closed(self._part(part, (place, f"{key}[{i}]")), self._document.composed(beside, part))
            for i, part in enumerate(parts)
        ]
        return typed(written, self._document.composed(node))

    def _node(self, schema: Any, place: Place) -> Mapping[str, Any] | bool:
        self._document.visit()
        if isinstance(schema, bool):
            return schema
        if self._widening is not None:
            return self._widened(schema, place)
        if not isinstance(schema, dict):
            self._refuse(place, "it must be an object")
        for key in schema:
            if key in NO:
                self._refuse(place, f"{key} is not supported; {NO[key]}")
        return schema

    def _widened(self, schema: Any, place: Place) -> Mapping[str, Any] | bool:
        if not isinstance(schema, dict):
            self._leave_out("all", place, "")
            return True
        if isinstance(pattern := schema.get("pattern"), str):
            self._document.read(len(pattern))
        node, left_out = widened(schema, self._document.resolves)
        for keyword in left_out:
            self._leave_out(keyword, place, "")
        return node

    def _reference(self, pointer: Any, *, is_part: bool) -> str:
        """The name of a reference's target, which is written once per kind."""
        self._document.followed({"$ref": pointer})
        name = self._names.get((pointer, is_part))
        if name is None:
            name = self._names[pointer, is_part] = f"d{len(self._names)}"
            self._unwritten.append((pointer, is_part, name))
        return f"#/$defs/{name}"

    def _written(self, node: Mapping[str, Any], place: Place, *, is_part: bool) -> dict[str, Any]:
        """The keywords that have an effect, and the schemas below."""
        written = self._values(node, place)
        for key, value in node.items():
            if key in ("properties", "patternProperties"):
                written[key] = self._named(key, value, place)
            elif key == "prefixItems" or (key == "items" and isinstance(value, list)):
                parts = enumerate(self._list(key, value, place))
                written[key] = [self._schema(part, (place, f"{key}[{i}]")) for i, part in parts]
            elif key in ("items", "additionalItems", "additionalProperties"):
                written[key] = self._schema(value, (place, key))
            elif key in ("allOf", *UNIONS):
                self._add_parts(written, key, value, place)
            elif key == "$ref":
                written[key] = self._reference(value, is_part=True)
            elif key == "pattern":
                written[key] = engine_pattern(value) if isinstance(value, str) else value
            elif key in _CHECKS and (reason := _CHECKS[key](self, node, is_part)):
                self._leave_out(key, place, reason)
                written.pop(key, None)
        return written | self._keyed(node, place)

    def _values(self, node: Mapping[str, Any], place: Place) -> dict[str, Any]:
        return {
            key: self._value(key, value, place)
            for key, value in node.items()
            if key in AS_THEY_ARE and (key != "format" or value in FORMATS)
        }

    def _add_parts(self, written: dict[str, Any], key: str, value: Any, place: Place) -> None:
        """Add the combined schemas; all unions but one go into `allOf`."""
        parts = self._list(key, value, place)
        if key != "allOf":
            self._check_union(key, parts, place)
        each = [self._part(part, (place, f"{key}[{i}]")) for i, part in enumerate(parts)]
        if key == "allOf":
            written[key] = [*written.get(key, ()), *each]
        elif "anyOf" in written:
            written["allOf"] = [*written.get("allOf", ()), {"anyOf": each}]
        else:
            written["anyOf"] = each

    def _named(self, key: str, value: Any, place: Place) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            self._refuse(place, f"{key} must be an object")
        if key == "patternProperties" and len(value) > MAX_PATTERNS:
            self._refuse(place, f"{key} has {len(value)} patterns; {MAX_PATTERNS} are supported")
        closed = {n: self._schema(part, (place, f"{key}.{n}")) for n, part in value.items()}
        if key == "patternProperties":
            return {engine_pattern(pattern): part for pattern, part in closed.items()}
        return closed

    def _keyed(self, node: Mapping[str, Any], place: Place) -> dict[str, Any]:
        """An object whose names `propertyNames` describes: as the engine has it, by a pattern."""
        if node.get("propertyNames") in (None, True, {}):
            return {}
        if {"properties", "required", "patternProperties"} & node.keys():
            reason = "propertyNames is supported without properties and patternProperties"
            self._leave_out("propertyNames", place, reason)
            return {}
        names = self._names_schema(node["propertyNames"])
        texts = names.get("enum") if isinstance(names, Mapping) else None
        pattern = names.get("pattern") if isinstance(names, Mapping) else None
        if isinstance(texts, list) and 0 < len(texts) <= _MAX_NAMES:
            pattern = f"^({'|'.join(re.escape(t) for t in texts if isinstance(t, str))})$"
        elif isinstance(pattern, str):
            is_lost = self._widening is not None and not is_enforceable(pattern)
            pattern = None if is_lost else engine_pattern(pattern)
        if not isinstance(pattern, str) or names.keys() - {"type", "enum", "pattern", "title"}:
            reason = f"propertyNames is supported with pattern, or enum of {_MAX_NAMES}"
            self._leave_out("propertyNames", place, reason)
            return {}
        value = self._schema(node.get("additionalProperties", True), (place, "propertyNames"))
        return {"type": "object", "patternProperties": {pattern: value}} | _SHUT

    def _names_schema(self, schema: Any) -> Any:
        """What `propertyNames` says, at the end of its references; None where they are lost."""
        if self._widening is None or not isinstance(schema, Mapping) or "$ref" not in schema:
            return self._document.followed(schema)
        is_found = self._document.resolves(schema["$ref"])
        return self._document.followed(schema) if is_found else None

    def _list(self, key: str, value: Any, place: Place) -> list[Any]:
        if not isinstance(value, list):
            self._refuse(place, f"{key} must be a list of schemas")
        return value

    def _value(self, key: str, value: Any, place: Place) -> Any:
        """A keyword's value; its numbers must be told apart, and sizes are integers."""
        if isinstance(value, str):
            return value
        if key in SIZES and isinstance(value, float) and value.is_integer():
            return int(value)
        value = narrowed(key, value)
        if is_large(value):
            self._refuse(place, f"{key} has a number beyond {MAX_INTEGER}")
        return value

    def _check_union(self, key: str, variants: list[Any], place: Place) -> None:
        if key == "oneOf" and not self._document.are_disjoint(variants):
            self._leave_out(
                key,
                place,
                "oneOf's variants may overlap; tell them apart by type or by a required property "
                "with a const, or use anyOf",
            )

    # What is wrong with a keyword of a node, if anything.

    def _check_unique(self, node: Mapping[str, Any], _: bool) -> str | None:
        most = node.get("maxItems")
        if node["uniqueItems"] is True and not (isinstance(most, int) and most < 2):
            return "uniqueItems is not supported; leave it out"
        return None

    def _check_step(self, node: Mapping[str, Any], is_part: bool) -> str | None:
        """Check the number of states: each remainder is one, and combinations multiply them."""
        try:
            step = Fraction(Decimal(str(node["multipleOf"])))
        except (InvalidOperation, ValueError, OverflowError):
            return "multipleOf must be a number"
        if step <= 0:
            return "multipleOf must be more than 0"
        shared = least_multiple(self._step, step) if is_part and self._step else step
        if max(num_states(step), num_states(shared)) > _MAX_STEP:
            return f"multipleOf is supported up to {_MAX_STEP}, without its point, all together"
        self._step = shared if is_part else self._step
        return None

    def _check_most(self, _: Mapping[str, Any], is_part: bool) -> str | None:
        """The engine does not count properties where other parts may name some."""
        return "maxProperties is not supported" if is_part and self._widening is not None else None

    def _check_least(self, node: Mapping[str, Any], is_part: bool) -> str | None:
        """A grammar counts a name that is written twice as two."""
        if is_part and self._widening is not None:
            return "minProperties is not supported"
        least, required = node["minProperties"], node.get("required", [])
        known = len(required) if isinstance(required, list) else 0
        if isinstance(least, int | float) and least > max(1, known):
            return "minProperties above 1 needs as many required properties"
        return None

    def _leave_out(self, keyword: str, place: Place, reason: str) -> None:
        """Note a keyword that is not enforced; raises RequestError where all must be."""
        if self._widening is None:
            self._refuse(place, reason)
        self._widening.note(self._path(place), keyword)

    def _refuse(self, place: Place, reason: str) -> NoReturn:
        _refuse(self._path(place), reason)

    def _path(self, place: Place) -> str:
        steps: list[str] = []
        at: Place | None = place
        while at is not None:
            steps.append(at[1][:_MAX_PATH])
            at = at[0]
        return self._field + _joined(reversed(steps))


_CHECKS: Final[Mapping[str, Callable[[_Closer, Mapping[str, Any], bool], str | None]]] = {
    "maxProperties": _Closer._check_most,
    "minProperties": _Closer._check_least,
    "uniqueItems": _Closer._check_unique,
    "multipleOf": _Closer._check_step,
}


def _joined(steps: Iterable[str]) -> str:
    path = "".join(step if step[:1] in ("", " ") else f".{step}" for step in steps)
    return path[:_MAX_PATH]


def _refuse(place: str, reason: str) -> NoReturn:
    message = f"{place} cannot be enforced: {reason}."
    raise RequestError(message, param=place.split(" ")[0], code="invalid_schema")


def _closed(written: Any, composed: Composed) -> Any:
    """Close an object that does not mention other properties."""
    if isinstance(written, bool):
        return written
    if composed.may_close:
        known = written.get("properties", {})
        names = {name: known.get(name, True) for name in composed.names}
        written = {**written, "properties": names, **_SHUT}
    return typed(written, composed)


_SHUT: Final = {"additionalProperties": False}
