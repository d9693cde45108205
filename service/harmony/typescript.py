"""JSON Schema to the TypeScript-like notation in which gpt-oss reads its tools.

Where openai-harmony keeps a schema's meaning, the text here is the same as the library's,
quirks of indentation included. Where the library drops it (anyOf, $ref, allOf, const,
numeric enums, additionalProperties, limits, later lines of a description), it is written
out. Nothing in a schema raises but its cost: what cannot be understood is `any`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from service.conversation import FreeText, Tool, ToolTooLarge
from service.harmony import json_schema
from service.work import Budget, OverBudget, rest

_NAMES = {
    "string": "string",
    "number": "number",
    "integer": "number",
    "boolean": "boolean",
    "null": "null",
}
_LIMITS = (
    "format",
    "pattern",
    "minimum",
    "exclusiveMinimum",
    "maximum",
    "exclusiveMaximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
)
_IDENTIFIER = re.compile(r"[A-Za-z_$][\w$]*")
_NESTED = "    "

# Schemas come from clients: `$ref`s may multiply without end though none is recursive.
_MAX_DEPTH = 24
_MAX_TYPES = 5000
# Of all tools of a request: keywords looked at and texts written, about half a second.
MAX_STEPS = 1_000_000
_TEXT_STEPS = 16  # of a text, however short; and one more per this many characters
_CHARS_COPIED = 64
_CHARS_SPLIT = 8


def describe_tools(
    tools: Iterable[Tool], namespaces: Mapping[str, str] = {}, max_steps: int = MAX_STEPS
) -> str:
    """The `# Tools` section of a developer message; `namespaces` has their descriptions.

    Raises ToolTooLarge where a schema or description would take more than `max_steps`.
    """
    budget = Budget(max_steps, "steps")
    grouped: dict[str, list[Tool]] = {}
    for tool in tools:
        grouped.setdefault(tool.namespace, []).append(tool)
    sections = [
        _describe(name, namespaces.get(name, ""), of, budget) for name, of in grouped.items()
    ]
    return "\n\n".join(["# Tools", *sections])


def _describe(namespace: str, description: str, tools: Iterable[Tool], budget: Budget) -> str:
    comments = _affordable(namespace, partial(_description, description, budget))
    declarations = "".join(
        f"{_affordable(tool.name, partial(_describe_tool, tool, budget))}\n\n" for tool in tools
    )
    return (
        f"## {namespace}\n\n{comments}namespace {namespace} {{\n\n{declarations}}}"
        f" // namespace {namespace}"
    )


def _affordable(name: str, write: Callable[[], str]) -> str:
    try:
        return write()
    except OverBudget as error:
        raise ToolTooLarge(name, error.limit) from None


def _description(text: str, budget: Budget) -> str:
    return "".join(f"{line}\n" for line in _comment(text, budget))


def _describe_tool(tool: Tool, budget: Budget) -> str:
    comments = _description(tool.description, budget)
    if tool.free_text is not None:
        return f"{comments}{_free_text(tool.free_text)}type {tool.short_name} = (_: string) => any;"
    parameters = "" if tool.parameters is None else f"_: {write_type(tool.parameters, budget)}"
    return f"{comments}type {tool.short_name} = ({parameters}) => any;"


def _free_text(text: FreeText) -> str:
    notes = ["The input is free text: write it as it is, without JSON."]
    if text.pattern is not None:
        notes.append(f"It must match the regular expression {_literal(text.pattern)}.")
    if text.lark is not None:
        notes += ["It must follow this grammar, in Lark's syntax:", *text.lark.splitlines()]
    return "".join(f"// {note}\n" for note in notes)


def write_type(schema: Mapping[str, Any], budget: Budget | None = None) -> str:
    """One schema as a type; its `$ref`s are looked up inside it. Raises OverBudget."""
    return _Writer(schema, budget or Budget(MAX_STEPS, "steps")).write(schema)


class _Writer:
    """Writes the types of one tool's parameters."""

    def __init__(self, root: Mapping[str, Any], budget: Budget) -> None:
        self._root = root
        self._budget = budget
        self._open_refs: set[str] = set()
        self._depth = 0
        self._num_left = _MAX_TYPES

    def write(self, schema: Any, indent: str = "", *, is_property: bool = False) -> str:
        """The type of a schema, indented for its place."""
        return " | ".join(self._alternatives(schema, indent, is_property))

    def _alternatives(self, schema: Any, indent: str, is_property: bool = False) -> list[str]:
        if schema is False:
            return ["never"]
        rest()
        flat, refs = json_schema.flatten(schema, self._root, self._budget)
        self._num_left -= 1
        is_endless = not self._open_refs.isdisjoint(refs) or self._depth >= _MAX_DEPTH
        if is_endless or self._num_left < 0:
            return ["any"]
        self._open_refs.update(refs)  # none of which was open
        self._depth += 1
        members = list(dict.fromkeys(self._spent(self._expand(flat, indent, is_property))))
        self._depth -= 1
        self._open_refs.difference_update(refs)
        return ["any"] if "any" in members else members

    def _spent(self, texts: Iterable[str]) -> Iterator[str]:
        """The same; each text costs its length, because it may be one of many references."""
        for text in texts:
            rest()
            self._budget.spend(_TEXT_STEPS + len(text) // _CHARS_COPIED)
            yield text

    def _expand(self, schema: dict[str, Any], indent: str, is_property: bool) -> Iterator[str]:
        if "const" in schema:
            yield _literal(schema["const"])
        elif values := _list(schema, "enum"):
            yield from map(_literal, values)
        elif variants := json_schema.variants(schema):
            for variant in variants:
                yield from self._alternatives(variant, indent)
        else:
            for name in json_schema.type_names(schema):
                yield self._basic(name, schema, indent, is_property)
        if schema.get("nullable") is True:
            yield "null"

    def _basic(self, name: Any, schema: dict[str, Any], indent: str, is_property: bool) -> str:
        if name == "object":
            return self._object(schema, indent, is_property)
        if name == "array":
            return self._array(schema, indent)
        return _NAMES.get(name, "any") if isinstance(name, str) else "any"

    def _array(self, schema: dict[str, Any], indent: str) -> str:
        items = schema.get("items")
        if first := _list(schema, "prefixItems") or _list(schema, "items"):
            return self._tuple(first, schema, indent)
        return "Array<any>" if items is None else f"{self._element(items, indent)}[]"

    def _tuple(self, first: list[Any], schema: dict[str, Any], indent: str) -> str:
        elements = list(self._spent(self.write(item, indent) for item in first))
        rest = schema.get("items" if "prefixItems" in schema else "additionalItems")
        if isinstance(rest, Mapping):
            elements.append(f"...{self._element(rest, indent)}[]")
        return f"[{', '.join(elements)}]"

    def _element(self, schema: Any, indent: str) -> str:
        alternatives = self._alternatives(schema, indent)
        return alternatives[0] if len(alternatives) == 1 else f"({' | '.join(alternatives)})"

    def _object(self, schema: dict[str, Any], indent: str, is_property: bool) -> str:
        properties, others = _mapping(schema, "properties"), _others(schema)
        if others is not None and not properties:
            return f"Record<string, {self.write(others, indent)}>"
        required = {name for name in _list(schema, "required") if isinstance(name, str)}
        # A property's own description already stands above its name.
        lines = [] if is_property else _comment(schema.get("description"), self._budget)
        lines.append("{")
        for name, value in properties.items():
            lines += self._spent(self._property(name, value, name in required, indent))
        if others:
            lines.append(f"{indent}[key: string]: {self.write(others, indent + _NESTED)},")
        return "\n".join([*lines, f"{indent}}}"])

    def _property(self, name: str, schema: Any, is_required: bool, indent: str) -> Iterator[str]:
        flat, _ = json_schema.flatten(schema, self._root, self._budget)
        title = _comment(flat.get("title"), self._budget, indent)
        yield from [*title, f"{indent}//"] if title else []
        yield from _comment(flat.get("description"), self._budget, indent)
        yield from _examples(flat, indent)
        key = f"{indent}{_key(name)}{'' if is_required else '?'}:"
        notes = _notes(flat)
        if len(json_schema.real_variants(flat)) > 1:
            yield from [f"{indent}// {notes}"] if notes else []
            yield from [key, *self._variants(flat, indent), f"{indent},"]
        else:
            written = self.write(schema, indent + _NESTED, is_property=True)
            yield f"{key} {written},{' // ' if notes else ''}{notes}"

    def _variants(self, schema: dict[str, Any], indent: str) -> Iterator[str]:
        for variant in json_schema.variants(schema):
            flat, _ = json_schema.flatten(variant, self._root, self._budget)
            written = self.write(variant, indent + "   ", is_property=True)
            said = flat.get("description")
            is_new = isinstance(said, str) and said != schema.get("description")
            note = " ".join([*(str(said).split() if is_new else []), _notes(flat)]).strip()
            yield f"{indent} | {written}{' // ' if note else ''}{note}"


def _comment(text: object, budget: Budget, indent: str = "") -> list[str]:
    if not isinstance(text, str):
        return []
    budget.spend(_TEXT_STEPS + len(text) // _CHARS_SPLIT)
    lines = []
    for line in text.strip("\n").splitlines():
        rest()
        lines.append(f"{indent}// {line}".rstrip())
    return lines


def _examples(schema: dict[str, Any], indent: str) -> list[str]:
    examples = _list(schema, "examples")
    lines = [f"{indent}// - {_literal(example)}" for example in examples]
    return [f"{indent}// Examples:", *lines] if lines else []


def _notes(schema: dict[str, Any]) -> str:
    """Give the default and the limits, which a type cannot say."""
    notes = [f"default: {_default(schema)}"] if "default" in schema else []
    notes += [f"{key}: {_literal(schema[key])}" for key in _LIMITS if key in schema]
    return ", ".join(notes)


def _default(schema: dict[str, Any]) -> str:
    value = schema["default"]
    # Like the library: a default that is one of the enum's strings goes without quotes.
    if isinstance(value, str) and value in _list(schema, "enum") and value.isprintable():
        return value
    return _literal(value)


def _literal(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    except (RecursionError, ValueError):
        return "any"


def _key(name: object) -> str:
    return str(name) if _IDENTIFIER.fullmatch(str(name)) else _literal(str(name))


def _others(schema: dict[str, Any]) -> Mapping[str, Any] | None:
    """Give the schema of the properties that have no name, if the schema speaks of them."""
    others = schema.get("additionalProperties")
    if others is True:
        return {}
    return others if isinstance(others, Mapping) else None


def _list(schema: Mapping[str, Any], key: str) -> list[Any]:
    value = schema.get(key)
    return value if isinstance(value, list) else []


def _mapping(schema: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = schema.get(key)
    return value if isinstance(value, Mapping) else {}
