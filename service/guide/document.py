"""One JSON Schema as a document: its references, and what a composition in it speaks of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote

from service.guide.widening import OPEN, OPENERS
from service.work import Budget, rest

MAX_CHARS: Final = 500_000  # of a schema, as it is sent and as it is enforced
MAX_VALUES: Final = 100_000  # in it, of any kind
MAX_VISITS: Final = 5_000  # of schemas; a visit takes a few microseconds
MAX_VARIANTS: Final = 500

Schema = Mapping[str, Any]
Scalar = tuple[bool, object]  # whether it is a boolean, which equals a number in Python

_MAX_POINTER: Final = 1_000  # characters
_MAX_CHAIN: Final = 50  # references to references
_VALUES_OF_STEP: Final = 50  # that are looked at in the time of a visit
_COMBINED: Final = ("allOf", "anyOf", "oneOf")
_SAYS_MORE: Final = OPENERS | {"additionalProperties", "patternProperties", "propertyNames"}


class Unenforceable(ValueError):
    """A schema that cannot be enforced; the message says why."""


class LostReference(Unenforceable):
    """A reference to what is not in the document."""


@dataclass(frozen=True, slots=True)
class Composed:
    """The properties and keywords of a schema and of all that are combined with it."""

    names: dict[str, None] = field(default_factory=dict)  # of properties, in order
    keywords: set[str] = field(default_factory=set)

    def add(self, schema: Schema) -> int:
        """Add one schema's; gives how many property names it has."""
        self.keywords.update(schema)
        num_names = 0
        for key in ("properties", "required"):
            names = schema.get(key)
            if isinstance(names, Mapping | list):
                num_names += len(names)
                self.names.update((name, None) for name in names if isinstance(name, str))
        return num_names

    @property
    def may_close(self) -> bool:
        """Whether the object may be closed: it has names, and no keyword opens it."""
        return bool(self.names) and _SAYS_MORE.isdisjoint(self.keywords)


class Document:
    """Looks things up in one JSON Schema; counts what it reads, and rests where a thread does it.

    Its methods raise OverBudget when the steps of the whole request are spent.
    """

    def __init__(self, root: Any, budget: Budget, *, is_lenient: bool = False) -> None:
        """`is_lenient`: what a lost reference says is not known, and no error."""
        self._root = root
        self._budget = budget
        self._is_lenient = is_lenient
        self._num_visits = 0
        self._num_names = 0

    def check_size(self) -> None:
        """Raise Unenforceable for a schema larger than any that is read."""
        num_values = num_chars = 0
        waiting: list[Any] = [self._root]
        while waiting:
            value = waiting.pop()
            num_values += 1
            if isinstance(value, str):
                num_chars += len(value)
            elif isinstance(value, dict):
                num_chars += sum(map(len, value))
                waiting += value.values()
            elif isinstance(value, list):
                waiting += value
            if num_values % _VALUES_OF_STEP == 0:
                self._budget.spend()
                rest()
            if num_values > MAX_VALUES or num_chars > MAX_CHARS:
                most = f"{MAX_CHARS} characters and {MAX_VALUES} values"
                raise Unenforceable(f"it is too long; at most {most} are supported")

    def read(self, num_chars: int) -> None:
        """Count characters of a pattern that is looked at."""
        self._budget.spend(num_chars // _VALUES_OF_STEP)

    def visit(self) -> None:
        """Count one visited schema; raises Unenforceable when there were too many."""
        self._num_visits += 1
        if self._num_visits > MAX_VISITS:
            raise Unenforceable(f"it takes more than {MAX_VISITS} steps to read the whole schema")
        self._budget.spend()
        rest()

    def _visit_names(self, number: int) -> None:
        """Count names that are looked at together, which costs less."""
        self._num_names += number
        while self._num_names >= _VALUES_OF_STEP:
            self._num_names -= _VALUES_OF_STEP
            self.visit()

    def resolve(self, pointer: Any) -> Any:
        """The schema that a reference points to; raises Unenforceable if the document has none."""
        self.visit()
        found = self._root
        if not isinstance(pointer, str) or (pointer != "#" and not pointer.startswith("#/")):
            shown = str(pointer)[:100]
            raise LostReference(f"$ref {shown!r} does not point into the schema; use '#/$defs/...'")
        if len(pointer) > _MAX_POINTER:
            raise LostReference(f"$ref {pointer[:100]!r} is longer than {_MAX_POINTER} characters")
        for step in unquote(pointer[2:]).split("/") if pointer != "#" else ():
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, Mapping) and name in found:
                found = found[name]
            elif isinstance(found, list) and name.isdecimal() and int(name[:9]) < len(found):
                found = found[int(name[:9])]
            else:
                raise LostReference(f"$ref {pointer[:100]!r} points to nothing")
        return found

    def resolves(self, pointer: Any) -> bool:
        """Whether a reference leads to a schema."""
        try:
            return isinstance(self.followed({"$ref": pointer}), Mapping | bool)
        except LostReference:
            return False

    def followed(self, schema: Any) -> Any:
        for _ in range(_MAX_CHAIN):
            if not isinstance(schema, Mapping) or "$ref" not in schema:
                return schema
            schema = self.resolve(schema["$ref"])
        raise LostReference("its references never end")

    def composed(self, *schemas: Any) -> Composed:
        """The properties and keywords of these schemas and of all that they combine."""
        composed = Composed()
        for schema in self._all(schemas, composed):
            self._visit_names(composed.add(schema))
        return composed

    def _all(self, schemas: Sequence[Any], composed: Composed) -> Iterator[Schema]:
        """The schemas, what they refer to and what they combine, each once."""
        waiting, seen = list(reversed(schemas)), set[str]()
        while waiting:
            schema = waiting.pop()
            if not isinstance(schema, Mapping):
                continue
            self.visit()
            yield schema
            pointer = schema.get("$ref")
            if isinstance(pointer, str) and pointer not in seen:
                seen.add(pointer)
                if not self._is_lenient or self.resolves(pointer):
                    waiting.append(self.resolve(pointer))
                else:
                    composed.keywords.add(OPEN)
            for key in _COMBINED:
                if isinstance(parts := schema.get(key), list):
                    waiting += reversed(parts)

    # Disjoint variants: by type, by value, or by a property that all must have.

    def are_disjoint(self, variants: Sequence[Any]) -> bool:
        """Whether it is certain that no value is valid under two of these schemas."""
        if len(variants) > MAX_VARIANTS:
            return False
        try:
            found = [self.followed(variant) for variant in variants if variant is not False]
        except LostReference:
            if self._is_lenient:
                return False
            raise
        if not all(isinstance(variant, Mapping) for variant in found):
            return len(found) <= 1
        if _differ([_values(variant) for variant in found]):
            return True
        if _differ([_types(variant) for variant in found]):
            return True
        shared = set.intersection(*(_required(variant) for variant in found)) if found else ()
        return any(_differ(self._values_of(name, found)) for name in shared)

    def _values_of(self, name: str, variants: Sequence[Schema]) -> list[set[Scalar] | None]:
        self._visit_names(len(variants))
        return [_values(self.followed(variant["properties"][name])) for variant in variants]


def _differ(sets: Sequence[set[Any] | None]) -> bool:
    """Whether all sets are known and disjoint."""
    known = [one for one in sets if one]
    return len(known) == len(sets) and sum(map(len, known)) == len(set[Any]().union(*known))


def _values(schema: Any) -> set[Scalar] | None:
    """All that it may be, if that is a few values without parts."""
    if not isinstance(schema, Mapping):
        return None
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(values, list) or len(values) > MAX_VARIANTS:
        return None
    if any(isinstance(value, list | Mapping) for value in values):
        return None
    return {(isinstance(value, bool), value) for value in values}


def _types(schema: Schema) -> set[str] | None:
    named = schema.get("type", "object" if "properties" in schema else None)
    names = named if isinstance(named, list) else [named]
    if not all(isinstance(name, str) for name in names):
        return None
    return {"number" if name == "integer" else name for name in names}


def _required(schema: Schema) -> set[str]:
    """The names of properties that must be there and are described."""
    required, properties = schema.get("required"), schema.get("properties")
    if not isinstance(required, list) or not isinstance(properties, Mapping):
        return set()
    return {name for name in required if isinstance(name, str) and name in properties}
