"""Custom tools on /v1/responses: called with free text, and sent back as they came."""

from __future__ import annotations

from typing import Any

import pytest

MODEL = "gpt-oss-20b"
TEXT = 'print("é")\n'
CALL = f"<|channel|>commentary to=functions.run<|message|>{TEXT}<|call|>"
RUN_FLAT: Any = {"type": "custom", "name": "run", "description": "Runs code."}


@pytest.fixture
async def sdk(make_runtime: Any, make_client: Any, openai_sdk: Any) -> Any:
    http = await make_client(make_runtime(CALL))
    return openai_sdk.AsyncOpenAI(base_url="http://service/v1", api_key="none", http_client=http)


async def test_on_responses(sdk: Any, openai_sdk: Any) -> None:
    request: Any = {"model": MODEL, "input": "Hi", "tools": [RUN_FLAT]}
    kinds, written = [], ""
    async for event in await sdk.responses.create(**request, stream=True):
        type(event).model_validate(event.model_dump())
        kinds.append(event.type)
        written += event.delta if event.type == "response.custom_tool_call_input.delta" else ""
        if event.type == "response.custom_tool_call_input.done":
            assert event.input == written == TEXT
    assert list(dict.fromkeys(kinds))[2:-1] == [
        "response.output_item.added",
        "response.custom_tool_call_input.delta",
        "response.custom_tool_call_input.done",
        "response.output_item.done",
    ]
    first = await sdk.responses.create(**request)
    (call,) = first.output
    assert isinstance(call, openai_sdk.types.responses.ResponseCustomToolCall)
    assert (call.name, call.input) == ("run", TEXT)
    result = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "é"}
    for more in (
        {"previous_response_id": first.id, "input": [result]},
        {"input": [{"role": "user", "content": "Hi"}, call.to_dict(), result]},
    ):
        again = await sdk.responses.create(**request | more)
        assert again.status == "completed"
        assert again.usage is not None
        assert first.usage is not None
        assert again.usage.input_tokens > first.usage.input_tokens + first.usage.output_tokens


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [RUN_FLAT, RUN_FLAT]}, "tools[1].name"),
        ({"tool_choice": {"type": "custom", "name": "g"}}, "tool_choice"),
    ],
)
async def test_what_cannot_be_meant_is_refused(
    make_runtime: Any, make_client: Any, fields: Any, param: str
) -> None:
    http = await make_client(make_runtime(CALL))
    body = {"model": MODEL, "input": "Hi", "tools": [RUN_FLAT]} | fields
    answer = await http.post("/v1/responses", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
