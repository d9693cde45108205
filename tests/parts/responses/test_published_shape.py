"""What the published schema of the responses routes says, where ours could differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Fixture = Callable[..., Any]

PATH = "/v1/responses"
SCRIPT = (
    "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    "<|channel|>final<|message|>Hi<|return|>"
)
BAD = {"type": "object", "not": {}}
STRICT = {"type": "function", "name": "f", "strict": True, "parameters": BAD}


@pytest.fixture
async def client(make_client: Fixture, make_runtime: Fixture) -> Any:
    return await make_client(make_runtime(SCRIPT))


async def test_what_there_is_none_of_is_left_out(client: Any) -> None:
    body = {"model": "gpt-oss-20b", "input": "Hi", "presence_penalty": 0.5}
    answer = (await client.post(PATH, json=body)).json()
    assert "encrypted_content" not in answer["output"][0]
    assert (answer["presence_penalty"], answer["frequency_penalty"]) == (0.5, 0.0)
    chat = {"model": "gpt-oss-20b", "messages": [{"role": "user", "content": "Hi"}]}
    (choice,) = (await client.post("/v1/chat/completions", json=chat)).json()["choices"]
    assert "tool_calls" not in choice["message"]
    assert choice["message"]["refusal"] is None


async def test_the_input_is_counted_as_it_would_be_read(client: Any) -> None:
    tool = {"type": "function", "name": "f", "description": "Something."}
    for body in ({"input": "Hi"}, {"input": "Hi", "tools": [tool], "instructions": "Be kind."}):
        made = (await client.post(PATH, json={"model": "gpt-oss-20b"} | body)).json()
        for model in ({}, {"model": "gpt-oss-20b"}):
            counted = await client.post(f"{PATH}/input_tokens", json=model | body)
            assert counted.json() == {
                "object": "response.input_tokens",
                "input_tokens": made["usage"]["input_tokens"],
            }
    alone = {"input": "And now?"}
    after = alone | {"previous_response_id": made["id"]}
    few, more = [
        (await client.post(f"{PATH}/input_tokens", json=body)).json()["input_tokens"]
        for body in (alone, after)
    ]
    assert more > few


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"model": "gpt-17"}, 404, "model"),
        ({"conversation": "conv_1"}, 404, "conversation"),
        ({"max_output_tokens": 5}, 400, "max_output_tokens"),
        ({"previous_response_id": "resp_x"}, 400, "previous_response_id"),
    ],
)
async def test_what_cannot_be_counted_is_named(
    client: Any, body: dict[str, Any], status: int, param: str
) -> None:
    response = await client.post(f"{PATH}/input_tokens", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (status, param)


async def test_without_its_part_compact_is_no_response_whose_id_it_is(client: Any) -> None:
    response = await client.post(f"{PATH}/compact", json={"model": "gpt-oss-20b", "input": "Hi"})
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "route_not_found"


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([{"type": "web_search"}, STRICT], "tools[1].parameters"),
        (
            [
                {
                    "type": "namespace",
                    "name": "n",
                    "tools": [{"type": "custom", "name": "c"}, STRICT],
                }
            ],
            "tools[0].tools[1].parameters",
        ),
    ],
)
async def test_a_schema_is_named_by_its_place_in_the_request(
    client: Any, tools: list[Any], param: str
) -> None:
    body = {"model": "gpt-oss-20b", "input": "Hi", "tools": tools}
    error = (await client.post(PATH, json=body)).json()["error"]
    assert error["param"].startswith(param)
