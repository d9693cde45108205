"""Bodies that nobody has met yet: nested, doubled, repeated or long, anywhere in a request."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any, Final

from tests.attack.bodies import (
    CHAT,
    COMPLETIONS,
    COUNT,
    MAX_BYTES,
    MESSAGES,
    RENDER,
    RESPONSES,
    TOKENIZE,
    Attack,
)

Json = dict[str, Any]

# Where a client may put something of its own: the path, and the fields around it.
_PLACES: Final[dict[str, tuple[str, Callable[[Any], Json]]]] = {
    "content": (CHAT, lambda x: {"messages": [{"role": "user", "content": x}], "max_tokens": 4}),
    "messages": (CHAT, lambda x: {"messages": x, "max_tokens": 4}),
    "arguments": (CHAT, lambda x: {"messages": [{"role": "assistant", "tool_calls": x}]}),
    "parameters": (CHAT, lambda x: _with_tool(x)),
    "rendered tool": (RENDER, lambda x: _with_tool(x)),
    "tokenized tool": (TOKENIZE, lambda x: _with_tool(x)),
    "schema": (CHAT, lambda x: _with_format(x)),
    "stop": (CHAT, lambda x: {"messages": [], "stop": x}),
    "logit_bias": (CHAT, lambda x: {"messages": [], "logit_bias": x}),
    "unknown": (CHAT, lambda x: {"messages": [], "surprise": x}),
    "prompt": (COMPLETIONS, lambda x: {"prompt": x}),
    "input": (RESPONSES, lambda x: {"input": x, "max_output_tokens": 4}),
    "metadata": (
        RESPONSES,
        lambda x: {"input": "Hi", "client_metadata": x, "max_output_tokens": 4},
    ),
    "turns": (MESSAGES, lambda x: {"messages": x, "max_tokens": 4}),
    "system": (COUNT, lambda x: {"messages": [{"role": "user", "content": "Hi"}], "system": x}),
    "tool input": (
        COUNT,
        lambda x: {
            "messages": [
                {"role": "user", "content": "Hi"},
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": "t", "name": "f", "input": x}],
                },
                {"role": "user", "content": "And?"},
            ]
        },
    ),
}
_SCALARS: Final[tuple[Any, ...]] = ("", "a", "é", "\n", "<|end|>", 0, 1.5, None, True, {}, [])
_KEYWORDS: Final = ("allOf", "anyOf", "oneOf", "prefixItems", "enum", "required", "items")


def random_attacks(seed: int, number: int) -> Iterator[Attack]:
    """So many; a seed always gives the same."""
    for index in range(number):
        chance = random.Random(f"{seed}:{index}")
        place, shape = chance.choice(sorted(_PLACES)), chance.choice(sorted(_SHAPES))
        path, around = _PLACES[place]

        def make(chance: random.Random = chance, shape: str = shape, around: Any = around) -> bytes:
            return json.dumps({"model": "nano", **around(_SHAPES[shape](chance))}).encode()

        yield Attack(f"{seed}:{index} {shape} {place}", path, make)


def _nested(chance: random.Random) -> Any:
    value: Any = _scalar(chance)
    key = chance.choice(("properties", "items", "allOf", "x"))
    for _ in range(chance.choice((50, 90, 200))):
        value = chance.choice(([value], {key: value}, {key: [value, value]}))
        if len(json.dumps(value)) > MAX_BYTES // 3:
            break
    return value


def _doubled(chance: random.Random) -> Json:
    """References that multiply: small to send, 2**levels to walk."""
    levels, key = chance.randint(8, 40), chance.choice(_KEYWORDS[:4])
    definitions: Json = {f"d{levels}": {"type": "object", "properties": {"a": {}}}}
    for level in range(levels):
        ref = {"$ref": f"#/$defs/d{level + 1}"}
        also = {"description": "x", **ref}
        definitions[f"d{level}"] = chance.choice(
            ({key: [ref, also]}, {"properties": {"a": ref, "b": also}}, {key: [ref], **also})
        )
    return {"$defs": definitions, "$ref": "#/$defs/d0"}


def _repeated(chance: random.Random) -> Any:
    one = _piece(chance)
    number = min(MAX_BYTES // (len(json.dumps(one)) + 12), 10 ** chance.randint(2, 6))
    if chance.random() < 0.3:
        return {f"{i}": one for i in range(number)}
    return [one] * number if chance.random() < 0.7 else {chance.choice(_KEYWORDS): [one] * number}


def _long(chance: random.Random) -> str:
    one = chance.choice(("a", " ", "\n", "é", "word ", "(a?", "<|end|>", ",", "9", "a b\n", "漢"))
    return one * (10 ** chance.randint(4, 6) if chance.random() < 0.7 else MAX_BYTES // 8)


_SHAPES: Final[dict[str, Callable[[random.Random], Any]]] = {
    "nested": _nested,
    "doubled": _doubled,
    "repeated": _repeated,
    "long": _long,
}


def _piece(chance: random.Random) -> Any:
    """Something that a list of a request may hold, or nearly."""
    text = chance.choice(("", "Hi", "é" * 40))
    return chance.choice(
        (
            _scalar(chance),
            {"role": chance.choice(("user", "system", "assistant")), "content": text},
            {"type": "text", "text": text},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]},
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": text}},
            {"properties": {"a": {"type": "string"}}, "required": ["a"]},
            {"const": text, "pattern": "(a+)+$"},
        )
    )


def _scalar(chance: random.Random) -> Any:
    return chance.choice(_SCALARS)


def _with_tool(schema: Any) -> Json:
    function = {"name": "f", "parameters": schema}
    return {
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 4,
        "tools": [{"type": "function", "function": function}],
    }


def _with_format(schema: Any) -> Json:
    return {
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 4,
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
    }
