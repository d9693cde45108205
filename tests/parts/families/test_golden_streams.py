"""The bytes on the wire of the routes beside chat, whose own are in chat/test_stream.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Fixture = Callable[..., Any]

MODEL = {"model": "gpt-oss-20b", "stream": True}
RAW = 'Grüße, 👩‍🚀! "Quoted"\n<|return|>'
THOUGHT = '<|channel|>analysis<|message|>A short "thought".<|end|><|start|>assistant'
HELLO = THOUGHT + "<|channel|>final<|message|>Grüße, 👩‍🚀!\n<|return|>"
CALL = THOUGHT + (
    "<|channel|>commentary<|message|>Looking it up.<|end|><|start|>assistant"
    '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": "é", "b": [1]}<|call|>'
)
FREE_CALL = THOUGHT + "<|channel|>commentary to=functions.f <|message|>SELECT 'é';<|call|>"
THINKING = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2048}
MESSAGES = [{"role": "user", "content": "Hello!"}]
SCHEMA = {"type": "object"}

COMPLETIONS = [
    ("sse_completions.txt", RAW, {"max_tokens": 99}),
    ("sse_completions_usage.txt", RAW, {"stream_options": {"include_usage": True}, "echo": True}),
    ("sse_completions_logprobs.txt", RAW, {"logprobs": 1, "max_tokens": 5}),
    ("sse_completions_choices.txt", RAW, {"prompt": ["a", "b"], "max_tokens": 3}),
]
MESSAGE = [
    ("sse_messages.txt", HELLO, THINKING),
    ("sse_messages_tool_call.txt", CALL, {"tools": [{"name": "f", "input_schema": SCHEMA}]}),
    ("sse_messages_length.txt", HELLO, {"max_tokens": 14}),
    ("sse_messages_stop.txt", HELLO, {"stop_sequences": ["👩"]}),
]
RESPONSES = [
    ("sse_responses.txt", HELLO, {}),
    ("sse_responses_background.txt", HELLO, {"background": True}),
    ("sse_responses_length.txt", HELLO, {"max_output_tokens": 14}),
    ("sse_responses_logprobs.txt", HELLO, {"include": ["message.output_text.logprobs"]}),
    (
        "sse_responses_tool_call.txt",
        CALL,
        {"tools": [{"type": "function", "name": "f", "parameters": SCHEMA}]},
    ),
    (
        "sse_responses_custom_call.txt",
        FREE_CALL,
        {"tools": [{"type": "custom", "name": "f"}]},
    ),
]


@pytest.mark.parametrize(("name", "script", "changes"), COMPLETIONS)
async def test_completions(
    make_runtime: Fixture,
    make_client: Fixture,
    compare: Fixture,
    name: str,
    script: str,
    changes: dict[str, Any],
) -> None:
    client = await make_client(make_runtime(script))
    body = MODEL | {"prompt": "Hello!"} | changes
    compare(name, (await client.post("/v1/completions", json=body)).text)


@pytest.mark.parametrize(("name", "script", "changes"), MESSAGE)
async def test_messages(
    make_runtime: Fixture,
    make_client: Fixture,
    compare: Fixture,
    name: str,
    script: str,
    changes: dict[str, Any],
) -> None:
    client = await make_client(make_runtime(script))
    body = MODEL | {"messages": MESSAGES, "max_tokens": 99} | changes
    compare(name, (await client.post("/v1/messages", json=body)).text)


@pytest.mark.parametrize(("name", "script", "changes"), RESPONSES)
async def test_responses(
    make_runtime: Fixture,
    make_client: Fixture,
    compare: Fixture,
    name: str,
    script: str,
    changes: dict[str, Any],
) -> None:
    client = await make_client(make_runtime(script))
    body = MODEL | {"input": "Hello!"} | changes
    compare(name, (await client.post("/v1/responses", json=body)).text)


@pytest.mark.parametrize(
    ("name", "path", "body"),
    [
        ("sse_completions_error.txt", "/v1/completions", {"prompt": "Hello!"}),
        ("sse_messages_error.txt", "/v1/messages", {"messages": MESSAGES} | THINKING),
        ("sse_responses_error.txt", "/v1/responses", {"input": "Hello!"}),
    ],
)
async def test_an_error_in_mid_stream(
    make_runtime: Fixture,
    make_client: Fixture,
    compare: Fixture,
    name: str,
    path: str,
    body: dict[str, Any],
) -> None:
    script = RAW if path.endswith("completions") else HELLO
    client = await make_client(make_runtime(script, fail_at=3 if script is RAW else 14))
    compare(name, (await client.post(path, json=MODEL | body)).text)
