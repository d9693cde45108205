"""Integers that a client writes with a point are integers, in every field of every route."""

from __future__ import annotations

from typing import Any

import pytest

from tests.parts.families.table import BODIES, CHAT, MESSAGES, MODEL, RESPONSES, TEXT

Fixture = Any

LIMITS = {CHAT: "max_completion_tokens", TEXT: "max_tokens", RESPONSES: "max_output_tokens"}
FIELDS: list[tuple[str, dict[str, Any]]] = [
    *((path, {name: 8.0}) for path, name in LIMITS.items()),
    (MESSAGES, {"max_tokens": 8.0, "top_k": 3.0}),
    (MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": 4.0}}),
    (CHAT, {"n": 2.0, "seed": 7.0, "top_k": 5.0, "priority": 0.0, "min_tokens": 1.0}),
    (CHAT, {"logprobs": True, "top_logprobs": 2.0, "stop_token_ids": [1.0, 2]}),
    (CHAT, {"thinking_token_budget": 5.0, "continue_token_ids": [35644.0]}),
    (TEXT, {"prompt": [1.0, 2.0]}),
    (TEXT, {"prompt": [[1.0], [2, 3.0]], "logprobs": 1.0}),
    ("/detokenize", {"tokens": [1.0, 2]}),
    (RESPONSES, {"max_tool_calls": 3.0}),
]


@pytest.fixture
async def client(make_runtime: Fixture, make_client: Fixture) -> Any:
    return await make_client(make_runtime("<|channel|>final<|message|>Hi.<|return|>"))


@pytest.mark.parametrize(("path", "fields"), FIELDS)
async def test_an_integer_may_be_written_with_a_point(
    client: Any, path: str, fields: dict[str, Any]
) -> None:
    body = {**MODEL, **BODIES.get(path, {}), **fields}
    response = await client.post(path, json=body)
    assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"max_completion_tokens": 64.5}, "max_completion_tokens"),
        (CHAT, {"max_completion_tokens": "64"}, "max_completion_tokens"),
        (CHAT, {"n": True}, "n"),
        (CHAT, {"n": 0.0}, "n"),
        (CHAT, {"stop_token_ids": [1.0, 2.5]}, "stop_token_ids[1]"),
        ("/detokenize", {"tokens": [1, "2"]}, "tokens[1]"),
    ],
)
async def test_no_other_value_becomes_one(
    client: Any, path: str, fields: dict[str, Any], param: str
) -> None:
    response = await client.post(path, json={**MODEL, **BODIES.get(path, {}), **fields})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


async def test_an_argument_of_a_call_stays_as_it_was_written(client: Any) -> None:
    """Only the API's own integers are read so: 1.0 in a tool's input is the tool's."""
    use = {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1.0}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": "x"}
    turns = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    hi = {"role": "user", "content": "Hi"}
    counts = []
    for value in (1.0, 1):
        use["input"] = {"x": value}
        body = {**MODEL, "messages": [hi, *turns]}
        response = await client.post("/v1/messages/count_tokens", json=body)
        counts.append(response.json()["input_tokens"])
    assert counts[0] > counts[1]
