"""Random JSON Schemas of the kinds users write; the same number always makes the same schema."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from engines.grammar.tree import Grammar
from service.chat_format import format_named
from service.guide.answer import AnswerFormat, answer_grammar

Schema = dict[str, Any]


def guided_by(schema: Schema) -> Grammar | None:
    """The grammar of a whole answer of this schema."""
    return answer_grammar(format_named("harmony"), (), format=AnswerFormat("json_schema", schema))


_NAMES = (
    *("id", "name", "title", "age", "city", "tags", "status", "items", "price"),
    *("kind", "value", "email", "note_1", "größe", "x-y", 'q"', "a.b"),
)
_WORDS = ("red", "green", "blue", 'say "hi"', "a\\b", "né", "", "two words", "line\nbreak")
_PATTERNS = (
    r"^[A-Z]{3}-\d{4}$",
    r"^\d{4}-\d{2}-\d{2}$",
    r"^(yes|no|maybe)$",
    r"^[a-z0-9_]+$",
    r"^\S+@\S+\.\w{2,4}$",
    r"[0-9]",
    r"^#([0-9a-fA-F]{6}|[0-9a-fA-F]{3})$",
    r'^"[^a]*"$',
    r"^.{2,5}$",
    r"^\+?[1-9]\d{1,14}$",
    r"^a|z$",
)
_FORMATS = ("date", "date-time", "time", "email", "uuid", "ipv4", "uri", "hostname", "duration")


class SchemaMaker:
    """Makes one schema."""

    def __init__(self, number: int) -> None:
        self._random = random.Random(number)
        self._defs: Schema = {}

    def document(self) -> Schema:
        """A whole document: nearly always an object, as response formats are."""
        is_object = self._random.random() < 0.85
        body = self._object(3) if is_object else self._any(3)
        if self._defs:
            body = {**body, "$defs": self._defs}
        return {**body, "title": "Answer"} if self._random.random() < 0.5 else body

    def _any(self, depth: int) -> Schema:
        leaves: list[Callable[[], Schema]] = [
            self._string,
            self._string,
            self._number,
            self._integer,
            self._enum,
            lambda: {"type": "boolean"},
            lambda: {"type": self._pick(["null", ["string", "null"], ["integer", "string"]])},
        ]
        if depth == 0:
            return self._random.choice(leaves)()
        nested = [self._object, self._object, self._array, self._union, self._reference]
        if self._random.random() < 0.5:
            return self._random.choice(leaves)()
        return self._random.choice(nested)(depth - 1)

    def _pick(self, options: Any) -> Any:
        return self._random.choice(options)

    def _bounds(self, low: str, high: str, start: float, widths: tuple[int, ...]) -> Schema:
        width = self._pick(widths)
        both = {low: start, high: start + width}
        return {key: both[key] for key in both if self._random.random() < 0.6}

    def _string(self) -> Schema:
        kind = self._random.random()
        if kind < 0.3:
            return {"type": "string"}
        if kind < 0.5:
            return {
                "type": "string",
                **self._bounds("minLength", "maxLength", self._pick((0, 1, 3)), (0, 4, 30)),
            }
        if kind < 0.85:
            return {"type": "string", "pattern": self._pick(_PATTERNS)}
        return {"type": "string", "format": self._pick(_FORMATS)}

    def _number(self) -> Schema:
        start = self._pick((-10, -0.5, 0, 0.25, 3))
        bounds = self._bounds("minimum", "maximum", start, (1, 10, 1000))
        if self._random.random() < 0.2:
            bounds = {"exclusiveMinimum": start}
        return {"type": "number", **bounds}

    def _integer(self) -> Schema:
        bounds = self._bounds("minimum", "maximum", self._pick((-100, -1, 0, 1, 18)), (7, 99, 4096))
        if len(bounds) != 1 and self._random.random() < 0.2:
            bounds["multipleOf"] = self._pick((2, 5, 7))
        return {"type": "integer", **bounds}

    def _enum(self) -> Schema:
        if self._random.random() < 0.3:
            return {"const": self._pick((*_WORDS, 7, None, True, 1.5))}
        values = self._random.sample((*_WORDS, 1, 2, None, False, 0.5), self._pick((1, 2, 4)))
        return {"enum": values}

    def _object(self, depth: int) -> Schema:
        if self._random.random() < 0.12:
            return self._map(depth)
        names = self._random.sample(_NAMES, self._pick((0, 1, 2, 3, 4)))
        schema: Schema = {
            "type": "object",
            "properties": {name: self._any(depth) for name in names},
            "required": [name for name in names if self._random.random() < 0.6],
        }
        if self._random.random() < 0.5:
            schema["additionalProperties"] = False
        elif self._random.random() < 0.2:
            schema["additionalProperties"] = self._any(0)
        if self._random.random() < 0.1 and names:
            schema = {"allOf": [schema, {"properties": {names[0]: {}}, "required": names[:1]}]}
        return schema

    def _map(self, depth: int) -> Schema:
        value = self._any(depth)
        if self._random.random() < 0.3:
            pattern = self._pick(("^[a-z]+$", "^x-"))
            return {
                "type": "object",
                "patternProperties": {pattern: value},
                "additionalProperties": False,
            }
        if self._random.random() < 0.3:
            return {
                "type": "object",
                "propertyNames": {"enum": ["a", "b"]},
                "additionalProperties": value,
            }
        return {"type": "object", "additionalProperties": value, "maxProperties": 3}

    def _array(self, depth: int) -> Schema:
        if self._random.random() < 0.2:
            parts = [self._any(0) for _ in range(self._pick((1, 2, 3)))]
            return {"type": "array", "prefixItems": parts, "items": False, "minItems": len(parts)}
        bounds = self._bounds("minItems", "maxItems", self._pick((0, 1, 2)), (0, 2, 5))
        return {"type": "array", "items": self._any(depth), **bounds}

    def _union(self, depth: int) -> Schema:
        kind = self._random.random()
        if kind < 0.4:
            return {"anyOf": [self._any(depth), {"type": "null"}]}
        if kind < 0.7:
            return {"anyOf": [self._any(depth) for _ in range(self._pick((2, 3)))]}
        return {"oneOf": [self._tagged(tag, depth) for tag in ("cat", "dog")]}

    def _tagged(self, tag: str, depth: int) -> Schema:
        """A variant told by its `kind`, as Pydantic writes discriminated unions."""
        return {
            "type": "object",
            "properties": {"kind": {"const": tag, "type": "string"}, "more": self._any(depth)},
            "required": ["kind", *(["more"] if self._random.random() < 0.5 else [])],
        }

    def _reference(self, depth: int) -> Schema:
        name = f"D{len(self._defs)}"
        self._defs[name] = {}
        self._defs[name] = self._any(depth)
        if self._random.random() < 0.3:  # a tree
            self._defs[name] = {
                "type": "object",
                "properties": {
                    "value": self._any(0),
                    "next": {"anyOf": [{"$ref": f"#/$defs/{name}"}, {"type": "null"}]},
                },
                "required": ["value"],
                "additionalProperties": False,
            }
        reference = {"$ref": f"#/$defs/{name}"}
        return {**reference, "description": "more"} if self._random.random() < 0.3 else reference


def random_schema(number: int) -> Schema:
    """Schema `number`."""
    return SchemaMaker(number).document()
