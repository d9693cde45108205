"""Whatever JSON comes: an answer or a 4xx that says why, on each of these routes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parts.responses.schemas.request import ResponseRequest
from tests.examples import examples
from tests.parts.families.table import BODIES, HI, MESSAGES, MODEL, RESPONSES, TEXT

Fixture = Callable[..., Any]

LEAST: dict[str, dict[str, Any]] = {
    TEXT: MODEL | BODIES[TEXT] | {"max_tokens": 2},
    MESSAGES: MODEL | BODIES[MESSAGES] | {"max_tokens": 2},
    RESPONSES: MODEL | BODIES[RESPONSES] | {"max_output_tokens": 2},
    "/v1/messages/count_tokens": {**MODEL, "messages": HI},
    "/v1/chat/completions/render": {**MODEL, "messages": HI},
    "/v1/completions/render": {**MODEL, "prompt": "a"},
    "/tokenize": {"prompt": "a"},
    "/detokenize": {"tokens": [1]},
}
NAMES = [
    "prompt", "messages", "role", "content", "type", "text", "tools", "name", "input_schema",
    "tool_choice", "thinking", "budget_tokens", "system", "stop", "stop_sequences", "logprobs",
    "echo", "n", "logit_bias", "tokens", "output_config", "format", "schema", "tool_use_id", "id",
    "max_tokens", "is_error", "input", "call_id", "arguments", "output", "summary",
    *sorted(ResponseRequest.model_fields),
]  # fmt: skip
WORDS = ["user", "assistant", "text", "tool_use", "tool_result", "enabled", "tool", "any", "", "é"]
WORDS += ["message", "function_call", "function_call_output", "reasoning", "input_text"]
leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(WORDS)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4)
    ),
    max_leaves=10,
)


@pytest.mark.parametrize("path", sorted(LEAST))
async def test_no_body_is_a_server_error(
    make_runtime: Fixture, make_client: Fixture, path: str
) -> None:
    samples: list[dict[str, Any]] = []

    @examples(60)
    @given(st.dictionaries(st.sampled_from(NAMES), values, min_size=1, max_size=3))
    def collect(changes: dict[str, Any]) -> None:
        samples.append(LEAST[path] | changes)

    collect()
    client = await make_client(make_runtime("<|channel|>final<|message|>Hi<|return|>"))
    for sample in samples:
        content = json.dumps(sample).encode()
        response = await client.post(path, content=content, headers=JSON)
        assert response.status_code < 500, (sample, response.text)
        assert response.status_code == 200 or response.json()["error"]["message"]


JSON = {"content-type": "application/json"}
BAD = [b"", b"[]", b"{", b'{"model": NaN}', b'{"model": "\xff"}', b'{"n": 1e999}', b"[" * 500]


@pytest.mark.parametrize("content", BAD)
async def test_what_is_no_json_is_a_400(
    make_runtime: Fixture, make_client: Fixture, content: bytes
) -> None:
    client = await make_client(make_runtime("<|return|>"))
    for path in LEAST:
        response = await client.post(path, content=content, headers=JSON)
        assert response.status_code == 400
        assert response.json()["error"]["message"]
