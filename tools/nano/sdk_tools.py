"""Tools as SDKs send them: a function's docstring and annotations, or a schema written by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from service.conversation import Tool
from tools.nano.words import Words

Schema = dict[str, Any]


def text(description: str = "") -> Schema:
    """Return the schema of a string."""
    return {"type": "string", "description": description} if description else {"type": "string"}


def number(kind: str, description: str = "") -> Schema:
    """Return the schema of a number."""
    return {"type": kind, "description": description} if description else {"type": kind}


def make_tool(
    words: Words,
    name: str,
    description: str,
    params: Mapping[str, Schema],
    required: Sequence[str] = (),
) -> Tool:
    """Return a tool with its description as it is, or as the docstring of a function."""
    rng = words.rng
    if not params and rng.random() < 0.5:
        return Tool(name, description)
    schema: Schema = {"type": "object", "properties": dict(params), "required": list(required)}
    if rng.random() < 0.4:
        schema["additionalProperties"] = False
    if rng.random() < 0.2:  # pydantic's
        titles = {key: key.replace("_", " ").title() for key in params}
        schema["properties"] = {key: {"title": titles[key], **params[key]} for key in params}
        schema["title"] = rng.choice([f"{name}_args", f"{name}Arguments", name])
    return Tool(name, _documented(words, name, description, params), schema)


_TYPES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "array": "list"}


def any_tool(words: Words) -> Tool:
    """Make up a tool of a made-up verb and noun, with one parameter."""
    noun, verb, key = words.noun(), words.noun(), words.noun()
    told = f"{verb.capitalize()} the {noun}."
    return make_tool(words, f"{verb}_{noun}", told, {key: text()}, [key])


def _documented(words: Words, name: str, description: str, params: Mapping[str, Schema]) -> str:
    """Return a description, at times with what SDKs add: the signature or the docstring's rest."""
    rng = words.rng
    style = rng.random()
    types = {key: _TYPES[schema["type"]] for key, schema in params.items()}
    if style < 0.06:
        signature = ", ".join(f"{key}: {kind}" for key, kind in types.items())
        result = rng.choice(["str", "float", "int", "dict"])
        return f"{name}({signature}) -> {result}\n{description}"
    if not description or style > 0.18:
        return description
    if style > 0.14:
        return f"{description} {words.phrase(3, 8).capitalize()}."
    end = rng.choice([".", f" of the {words.noun()}."])
    lines = [f"    {key} ({kind}): The {key}{end}" for key, kind in types.items()]
    told = "\n".join([f"{description}\n\nArgs:", *lines]) if lines else description
    returned = f"\n\nReturns:\n    {rng.choice(['str', 'dict'])}: {words.phrase(2, 5)}."
    return told + rng.choice(["", returned])
