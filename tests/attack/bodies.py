"""Bodies that once held the server, each with what it costs whoever does not look first.

All are below NIM_MAX_BODY_BYTES, need a key that may generate and nothing else. Sizes are those
that took seconds; a server that refuses or answers them in time is as right as the other.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

CHAT: Final = "/v1/chat/completions"
RENDER: Final = "/v1/chat/completions/render"
COMPLETIONS: Final = "/v1/completions"
RESPONSES: Final = "/v1/responses"
MESSAGES: Final = "/v1/messages"
COUNT: Final = "/v1/messages/count_tokens"
TOKENIZE: Final = "/tokenize"
DETOKENIZE: Final = "/detokenize"

MAX_BYTES: Final = 10 * 1024 * 1024 - 4096  # of what grows until the limit of a body
_HELLO: Final = [{"role": "user", "content": "Hello"}]

Json = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Attack:
    """One body and where it goes; made when its turn comes, for some are large.

    `ordinary`: of a body that is the work of many requests, one of those.
    """

    name: str
    path: str
    make: Callable[[], bytes]
    ordinary: Callable[[], bytes] | None = None


def known_attacks() -> list[Attack]:
    """Every body that a red team met, on each route that reads its kind."""
    return [*_schemas(), *_grammars(), *_long(), *_many(), *_odd()]


def _attack(
    name: str, path: str, make: Callable[[], Json], ordinary: Callable[[], Json] | None = None
) -> Attack:
    part = partial(_body, ordinary) if ordinary is not None else None
    return Attack(name, path, partial(_body, make), part)


def _body(make: Callable[[], Json]) -> bytes:
    return json.dumps({"model": "nano", **make()}).encode()


def _then(make: Callable[[], T], wrap: Callable[[T], Json]) -> Callable[[], Json]:
    return lambda: wrap(make())


def _asking(**fields: Any) -> Json:
    return {"messages": _HELLO, "max_tokens": 8, **fields}


def _format(schema: Json) -> Json:
    given = {"name": "x", "schema": schema}
    return _asking(response_format={"type": "json_schema", "json_schema": given})


def _tool(schema: Json, **more: Any) -> Json:
    return {"type": "function", "function": {"name": "f", "parameters": schema, **more}}


def _with_tool(schema: Json) -> Json:
    return _asking(tools=[_tool(schema)])


def _with_strict_tool(schema: Json) -> Json:
    return _asking(tools=[_tool(schema, strict=True)])


def _described(text: str) -> Json:
    return _asking(tools=[_tool({}, description=text)])


def _schemas() -> list[Attack]:
    """JSON Schemas that are small to send and large to walk."""
    shapes: dict[str, Callable[[], Json]] = {
        "pattern beside enum": lambda: {
            "type": "string",
            "enum": ["a" * 60 + "!"],
            "pattern": "^(a+)+$",
        },
        "pattern beside const": lambda: {
            "type": "string",
            "const": "a" * 60 + "!",
            "pattern": "^(a|a?)+$",
        },
        "allOf doubled 14 times": lambda: _doubled("allOf", 14),
        "anyOf doubled 14 times": lambda: _doubled("anyOf", 14),
        "properties doubled 14 times": lambda: _doubled("properties", 14),
        "oneOf of two chains": lambda: {"oneOf": [_doubled("allOf", 10), _doubled("allOf", 10)]},
        "allOf of two enums of 1,000 objects": lambda: {
            "allOf": [{"enum": [{"a": i, "b": [i]} for i in range(1000)]} for _ in range(2)]
        },
        "allOf of 5,000 parts": lambda: _parts(5_000),
        "allOf of 40,000 parts": lambda: _parts(40_000),
        "optional letters 500,000 times": lambda: {"type": "string", "pattern": "a?" * 500_000},
        "propertyNames of 50,000": lambda: {
            "type": "object",
            "propertyNames": {"enum": [f"name{i}" for i in range(50_000)]},
        },
        "1,000 properties": lambda: _object(1_000),
        "16,000 properties": lambda: _object(16_000),
    }
    attacks = []
    for name, shape in shapes.items():
        attacks += [
            _attack(f"{name}, response_format", CHAT, _then(shape, _format)),
            _attack(f"{name}, plain tool", CHAT, _then(shape, _with_tool)),
            _attack(
                f"{name}, strict tool",
                CHAT,
                _then(shape, _with_strict_tool),
            ),
        ]
    parts = shapes["allOf of 5,000 parts"]
    attacks += [
        _attack("allOf of 5,000 parts, render", RENDER, lambda: _asking(tools=[_tool(parts())])),
        _attack(
            "allOf of 5,000 parts, tokenize",
            TOKENIZE,
            lambda: {"messages": _HELLO, "tools": [_tool(parts())]},
        ),
        _attack(
            "allOf of 5,000 parts, count",
            COUNT,
            lambda: {"messages": _HELLO, "tools": [{"name": "f", "input_schema": parts()}]},
        ),
        _attack(
            "allOf of 5,000 parts, responses",
            RESPONSES,
            lambda: {
                "input": "Hello",
                "max_output_tokens": 8,
                "tools": [{"type": "function", "name": "f", "parameters": parts()}],
            },
        ),
    ]
    return attacks


def _doubled(key: str, levels: int) -> Json:
    """Each definition has the next one twice: 2**levels of the last."""
    definitions: Json = {f"d{levels}": {"type": "string"}}
    for level in range(levels):
        ref = {"$ref": f"#/$defs/d{level + 1}"}
        twice: Any = {"a": ref, "b": ref} if key == "properties" else [ref, {**ref, "title": "t"}]
        definitions[f"d{level}"] = {key: twice}
    return {"$ref": "#/$defs/d0", "$defs": definitions}


def _parts(number: int) -> Json:
    part = [{"properties": {f"p{i}": {"type": "string"}}} for i in range(number)]
    return {"type": "object", "allOf": part}


def _object(number: int) -> Json:
    names = [f"property{i}" for i in range(number)]
    properties = {name: {"type": "string", "description": name} for name in names}
    return {"type": "object", "properties": properties, "required": names}


def _grammars() -> list[Attack]:
    lark = 'start: "a"\n' + "".join(f'r{i}: "b" | "c" r{i + 1}\n' for i in range(900))

    def custom(count: int) -> Json:
        grammar = {"type": "grammar", "grammar": {"syntax": "lark", "definition": lark[:19_990]}}
        tools = [
            {"type": "custom", "custom": {"name": f"t{i}", "format": grammar}} for i in range(count)
        ]
        return _asking(tools=tools)

    def slow(size: int) -> Json:
        item = {"type": "string", "maxLength": size}
        return _format({"type": "array", "items": item, "minItems": size, "maxItems": size})

    return [
        _attack("128 Lark tools", CHAT, lambda: custom(128)),
        *(
            _attack(f"slow to compile, {size}", CHAT, partial(slow, size))
            for size in (19_000, 19_001, 19_002)
        ),
        _attack(
            "regex nested",
            CHAT,
            lambda: _asking(structured_outputs={"regex": "(" * 500 + "a" + ")*" * 500}),
        ),
        _attack(
            "choices", CHAT, lambda: _asking(structured_outputs={"choice": ["a" * 99] * 50_000})
        ),
        *_compiled(),
    ]


def _compiled() -> list[Attack]:
    """Small grammars that the engine's library compiles or follows without end."""
    doubled = [f"T{i}: T{i - 1} T{i - 1}" for i in range(1, 24)]
    chain = [f'r{i}: "x" r{i + 1}' for i in range(4_000)]
    larks = {
        "doubled terminals": "\n".join(["start: T23", "T0: /a?b?c?/", *doubled]),
        "a chain of rules": "\n".join(["start: r0", *chain, 'r4000: "y"']),
        "ambiguous": 'start: a\na: a a a | /[a-z ]/ | ""',
    }
    patterns = [{"type": "string", "pattern": f"a{i}"} for i in range(200)]
    schemas: dict[str, Json] = {
        "a large step": {"type": "integer", "multipleOf": 1_000_003},
        "steps that meet": {"allOf": [{"multipleOf": n} for n in (9967, 9973)]},
        "patterns that meet": {"allOf": patterns},
        "options": {"type": "string", "pattern": "a?" * 4_900},
    }
    return [
        *(
            _attack(f"grammar: {name}", CHAT, partial(_lark_tool, text))
            for name, text in larks.items()
        ),
        *(
            _attack(f"grammar: {name}", CHAT, partial(_format, schema))
            for name, schema in schemas.items()
        ),
        _attack(
            "grammar: forced text",
            CHAT,
            lambda: _asking(structured_outputs={"regex": "((a{1000}){1000}){1000}"}),
        ),
    ]


def _lark_tool(grammar: str) -> Json:
    written = {"type": "grammar", "grammar": {"syntax": "lark", "definition": grammar}}
    return _asking(
        tools=[{"type": "custom", "custom": {"name": "f", "format": written}}],
        tool_choice="required",
    )


def _long() -> list[Attack]:
    """One text of as many bytes as a body may have."""
    text: dict[str, Callable[[], str]] = {
        "one letter": lambda: "a" * MAX_BYTES,
        "words": lambda: "word " * (MAX_BYTES // 5),
        "lines": lambda: "\n" * 500_000,
        "commas": lambda: "," * MAX_BYTES,
        "marks": lambda: "<|end|>" * (MAX_BYTES // 7),
    }
    attacks = []
    for name, of in text.items():
        attacks += [
            _attack(f"message of {name}", CHAT, _then(of, _user)),
            _attack(
                f"tool described in {name}",
                CHAT,
                _then(of, _described),
            ),
            _attack(f"prompt of {name}", COMPLETIONS, _then(of, lambda text: {"prompt": text})),
            _attack(f"count {name}", COUNT, _then(of, _user)),
            _attack(
                f"input of {name}",
                RESPONSES,
                _then(of, lambda text: {"input": text, "max_output_tokens": 8}),
            ),
            _attack(f"tokenize {name}", TOKENIZE, _then(of, lambda text: {"prompt": text})),
        ]
    return attacks


def _user(text: str) -> Json:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 8}


def _many() -> list[Attack]:
    """Small things in great number."""
    turn = {"role": "user", "content": "Hi"}
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    calling = {"role": "assistant", "tool_calls": [call] * 90_000}
    item = {"type": "message", "role": "user", "content": "Hi"}
    return [
        _attack("250k messages", CHAT, lambda: {"messages": [turn] * 250_000}),
        _attack("250k messages, render", RENDER, lambda: {"messages": [turn] * 250_000}),
        _attack("250k messages, tokenize", TOKENIZE, lambda: {"messages": [turn] * 250_000}),
        _attack("250k turns", MESSAGES, lambda: {"messages": [turn] * 250_000, "max_tokens": 8}),
        _attack("250k turns, count", COUNT, lambda: {"messages": [turn] * 250_000}),
        _attack(
            "200k items", RESPONSES, lambda: {"input": [item] * 170_000, "max_output_tokens": 8}
        ),
        _attack("2,000 messages", CHAT, lambda: _asking(messages=[turn] * 2_000)),
        _attack(
            "2,000 items", RESPONSES, lambda: {"input": [item] * 2_000, "max_output_tokens": 8}
        ),
        _attack("2,000 turns, count", COUNT, lambda: {"messages": [turn] * 2_000}),
        _attack("90k tool calls", CHAT, lambda: {"messages": [*_HELLO, calling]}),
        _attack(
            "300k content parts",
            CHAT,
            lambda: {"messages": [{**turn, "content": [{"type": "text", "text": ""}] * 300_000}]},
        ),
        _attack("90k tools", CHAT, lambda: _asking(tools=[_tool({})] * 90_000)),
        _attack("3.3M empty lists", CHAT, lambda: _asking(metadata=[[]] * 2_600_000)),
        _attack("600k unknown keys", CHAT, lambda: _asking(**_keys(600_000))),
        _attack("30k unknown keys", CHAT, lambda: _asking(**_keys(30_000))),
        _attack(
            "30k unknown keys of a message",
            CHAT,
            lambda: {"messages": [{**turn, **_keys(30_000)}]},
        ),
        _attack("30k metadata", CHAT, lambda: _asking(metadata=_keys(30_000))),
        _attack("200k wrong messages", CHAT, lambda: {"messages": [1] * 200_000}),
        _attack("200k wrong modalities", CHAT, lambda: _asking(modalities=[1] * 200_000)),
        _attack("2.6M token ids", COMPLETIONS, lambda: {"prompt": [1] * 2_600_000}),
        _attack("260k token ids", COMPLETIONS, lambda: {"prompt": [1] * 260_000}),
        _attack("120k token ids", COMPLETIONS, lambda: {"prompt": [1] * 120_000}),
        _attack("2.6M token ids, detokenize", DETOKENIZE, lambda: {"tokens": [1] * 2_600_000}),
        _attack("260k token ids, detokenize", DETOKENIZE, lambda: {"tokens": [1] * 260_000}),
        _attack(
            "1,000 prompts of 9 kB",
            COMPLETIONS,
            lambda: {"prompt": ["word " * 1_800] * 1_000, "max_tokens": 4},
            lambda: {"prompt": "word " * 1_800, "max_tokens": 4},
        ),
        _attack(
            "1,000 prompts",
            COMPLETIONS,
            lambda: {"prompt": ["Hello"] * 1_000, "max_tokens": 4},
            lambda: {"prompt": "Hello", "max_tokens": 4},
        ),
        _attack(
            "120k token ids, echo",
            COMPLETIONS,
            lambda: {"prompt": [1] * 120_000, "echo": True, "max_tokens": 4},
        ),
        _attack(
            "100 answers to an echoed prompt",
            COMPLETIONS,
            lambda: {"prompt": "word " * 8_000, "echo": True, "n": 100, "max_tokens": 4},
        ),
        _attack(
            "200k logit biases",
            CHAT,
            lambda: _asking(logit_bias={str(i): 1 for i in range(200_000)}),
        ),
        _attack("1M stop strings", CHAT, lambda: _asking(stop=["x"] * 1_000_000)),
    ]


def _keys(number: int) -> Json:
    return {f"key{i}": 0 for i in range(number)}


def _odd() -> list[Attack]:
    return [
        Attack("nested lists", CHAT, lambda: b"[" * MAX_BYTES),
        Attack("nested objects", CHAT, lambda: b'{"a":' * (MAX_BYTES // 5)),
        Attack("half a pair", CHAT, lambda: b'{"model":"' + b"\\ud800" * (MAX_BYTES // 6) + b'"}'),
        Attack("a long number", CHAT, lambda: b'{"n":' + b"9" * MAX_BYTES + b"}"),
        Attack("line breaks", CHAT, lambda: b'{"model":"' + b"\\n" * (MAX_BYTES // 2) + b'"}'),
        Attack("escapes", CHAT, lambda: b'{"model":"' + b"\\\\" * (MAX_BYTES // 2) + b'"}'),
        Attack("no end", CHAT, lambda: b'{"model":"' + b"a" * MAX_BYTES),
    ]
