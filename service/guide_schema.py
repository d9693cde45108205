"""A client's JSON Schema → one of which a grammar loses nothing.

xgrammar passes over what it does not know and what stands beside `$ref`, `anyOf` or `enum`.
Here references, `allOf` and neighbours are folded so that every keyword has its effect; what
cannot have it is refused by its path. The result may allow less than the schema, never more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from engines.grammar.tree import JsonSchema
from service.errors import RequestError
from service.guide_fold import Conflict, are_disjoint, fold, resolve
from service.guide_types import Unenforceable, of_type, type_names
from service.guide_values import admits

MAX_NODES: Final = 5000
_REFUSED: Final = {
    "not": "say what is allowed instead",
    "if": "use anyOf",
    "then": "use anyOf",
    "else": "use anyOf",
    "dependentSchemas": "use anyOf",
    "dependentRequired": "use anyOf",
    "dependencies": "use anyOf",
    "contains": "use items or prefixItems",
    "unevaluatedItems": "use items",
    "unevaluatedProperties": "use additionalProperties",
    "$dynamicRef": "use $ref",
    "$recursiveRef": "use $ref",
}


def schema_grammar(schema: Any, field: str) -> JsonSchema:
    """A document of the schema; raises RequestError naming the place that cannot be enforced."""
    return JsonSchema(json.dumps(enforceable(schema, field), ensure_ascii=False), field)


def enforceable(schema: Any, field: str) -> Any:
    """The schema as a grammar has it; raises RequestError.

    It is whole: references point into its own `$defs`.
    """
    return _Rewriter(schema, field).run()


class _Rewriter:
    """Rewrites one document."""

    def __init__(self, root: Any, field: str) -> None:
        self._root = root if isinstance(root, Mapping) else {}
        self._whole = root
        self._field = field
        self._names: dict[str, str] = {}  # of the references met, by pointer
        self._defs: dict[str, Any] = {}
        self._num_nodes = 0

    def run(self) -> Any:
        try:
            body = self._schema(self._whole, "")
            for pointer, name in self._all_names():
                self._defs[name] = self._schema(resolve(pointer, self._root), f" ({pointer})")
        except RecursionError:
            raise self._error("it is nested too deeply", "") from None
        return {**body, "$defs": self._defs} if self._defs else body

    def _all_names(self) -> Any:
        """Every reference, those included that are met on the way."""
        done = 0
        while done < len(self._names):
            yield list(self._names.items())[done]
            done += 1

    def _error(self, reason: str, path: str) -> RequestError:
        place = f"{self._field}{path}"
        message = f"{place} cannot be enforced: {reason}."
        return RequestError(message, param=place.split(" ")[0], code="invalid_schema")

    def _schema(self, schema: Any, path: str) -> Any:
        self._num_nodes += 1
        if self._num_nodes > MAX_NODES:
            raise self._error(f"the schema has more than {MAX_NODES} parts", "")
        if schema is True or schema == {}:
            return {}
        if schema is False:
            raise self._error("it allows nothing", path)
        if not isinstance(schema, Mapping):
            raise self._error("it must be an object", path)
        try:
            folded = fold(schema, self._root)
            return self._folded(folded, path)
        except (Conflict, Unenforceable) as error:
            raise self._error(str(error), path) from error

    def _folded(self, schema: Mapping[str, Any], path: str) -> Any:
        for keyword, remedy in _REFUSED.items():
            if keyword in schema:
                raise self._error(f"{keyword} is not supported; {remedy}", path)
        if "$ref" in schema:
            return {"$ref": f"#/$defs/{self._name(schema['$ref'])}"}
        if "enum" in schema:
            return self._enum(schema)
        for key in ("anyOf", "oneOf"):
            if key in schema:
                return {"anyOf": self._variants(schema[key], key, path)}
        types = type_names(schema)
        if not types:
            return {}
        each = [of_type(name, schema, self._child(path)) for name in types]
        return each[0] if len(each) == 1 else {"anyOf": each}

    def _name(self, pointer: str) -> str:
        """The name of what a reference points to, which is rewritten once."""
        return self._names.setdefault(pointer, f"d{len(self._names)}")

    def _enum(self, schema: Mapping[str, Any]) -> Any:
        """The values decide alone: those that the rest of the schema allows."""
        rest = {key: value for key, value in schema.items() if key != "enum"}
        values = [value for value in schema["enum"] if admits(rest, value, self._root)]
        if not values:
            raise Conflict("no value of enum is allowed here")
        return {"enum": values}

    def _variants(self, variants: list[Any], key: str, path: str) -> list[Any]:
        if key == "oneOf" and not are_disjoint(variants, self._root):
            raise self._error(
                "oneOf's variants may overlap; tell them apart by type or by a required "
                "property with a const, or use anyOf",
                path,
            )
        possible = [(i, variant) for i, variant in enumerate(variants) if variant is not False]
        if not possible:
            raise self._error(f"{key} allows nothing", path)
        return [self._schema(variant, f"{path}.{key}[{i}]") for i, variant in possible]

    def _child(self, path: str) -> Any:
        return lambda schema, step: self._schema(schema, f"{path}.{step}")
