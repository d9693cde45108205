"""Whatever JSON comes: an answer or a 4xx that says why, on each of these routes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples

Fixture = Callable[..., Any]

HI = [{"role": "user", "content": "Hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"model": "gpt-oss-20b", "prompt": "a", "max_tokens": 2},
    "/v1/messages": {"model": "gpt-oss-20b", "max_tokens": 2, "messages": HI},
    "/v1/messages/count_tokens": {"model": "gpt-oss-20b", "messages": HI},
    "/v1/chat/completions/render": {"model": "gpt-oss-20b", "messages": HI},
    "/v1/completions/render": {"model": "gpt-oss-20b", "prompt": "a"},
    "/tokenize": {"prompt": "a"},
    "/detokenize": {"tokens": [1]},
}
NAMES = [
    "prompt", "messages", "role", "content", "type", "text", "tools", "name", "input_schema",
    "tool_choice", "thinking", "budget_tokens", "system", "stop", "stop_sequences", "logprobs",
    "echo", "n", "logit_bias", "tokens", "output_config", "format", "schema", "tool_use_id", "id",
    "max_tokens", "is_error", "input",
]  # fmt: skip
WORDS = ["user", "assistant", "text", "tool_use", "tool_result", "enabled", "tool", "any", "", "é"]
leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(WORDS)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4)
    ),
    max_leaves=10,
)


@pytest.mark.parametrize("path", sorted(BODIES))
async def test_no_body_is_a_server_error(
    make_runtime: Fixture, make_client: Fixture, path: str
) -> None:
    samples: list[dict[str, Any]] = []

    @examples(60)
    @given(st.dictionaries(st.sampled_from(NAMES), values, min_size=1, max_size=3))
    def collect(changes: dict[str, Any]) -> None:
        samples.append(BODIES[path] | changes)

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
    for path in BODIES:
        response = await client.post(path, content=content, headers=JSON)
        assert response.status_code == 400
        assert response.json()["error"]["message"]
