"""What a chat request may hold, named by its path; what all routes have is in ../test_fields.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Fixture = Callable[..., Any]

PATH = "/v1/chat/completions"
TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.fixture
def post(make_runtime: Fixture, make_client: Fixture, chat_body: Fixture) -> Fixture:
    async def send(**changes: Any) -> Any:
        client = await make_client(make_runtime("<|channel|>final<|message|>Hi<|return|>"))
        return await client.post(PATH, json=chat_body(**changes))

    return send


@pytest.fixture
def refused(post: Fixture) -> Fixture:
    """Send a request that must be refused; give the error."""

    async def send(**changes: Any) -> dict[str, Any]:
        response = await post(**changes)
        assert response.status_code == 400, response.text
        error: dict[str, Any] = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["type"] == "invalid_request_error"
        assert error["message"]
        return error

    return send


@pytest.mark.parametrize(
    ("changes", "param", "word"),
    [
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": "hi"}, "messages", "list"),
        ({"messages": [{"role": "king", "content": ""}]}, "messages[0]", "king"),
        ({"messages": [{"content": ""}]}, "messages[0]", "role is required"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "required"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content", "string"),
        ({"messages": [{"role": "user", "content": "", "x": 1}]}, "messages[0].x", "not a field"),
        ({"stop": ["a", ""]}, "stop[1]", "at least 1"),
        ({"logit_bias": {"1": 101}}, "logit_bias.1", "100"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens", "differ"),
        ({"top_logprobs": 2}, "top_logprobs", "logprobs: true"),
        ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x", "not a field"),
        ({"reasoning_effort": "extreme"}, "reasoning_effort", "extreme"),
        ({"verbosity": "huge"}, "verbosity", "huge"),
        ({"modalities": ["text", "audio"]}, "modalities", "text only"),
        ({"response_format": "json"}, "response_format", "dictionary"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "not connected"),
        ({"tools": [{"type": "custom"}]}, "tools[0].custom", "required"),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "required"),
        ({"tools": [TOOL, TOOL]}, "tools[1].function.name", "repeats"),
        (
            {"tools": [{"type": "function", "function": {"name": "a b"}}]},
            "tools[0].function.name",
            "a b",
        ),
    ],
)
async def test_a_bad_value_is_refused_by_its_path(
    refused: Fixture, changes: dict[str, Any], param: str, word: str
) -> None:
    error = await refused(**changes)
    assert error["param"] == param
    assert word in error["message"]


@pytest.mark.parametrize(
    ("message", "param"),
    [
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]},
            "messages[1].content[1]",
        ),
        ({"role": "user", "content": [{"type": "input_audio"}]}, "messages[1].content[0]"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[1].content[0].text"),
        ({"role": "user", "content": [7]}, "messages[1].content[0]"),
        ({"role": "assistant", "audio": {"id": "x"}}, "messages[1].audio"),
        ({"role": "assistant", "function_call": {}}, "messages[1].function_call"),
        (
            {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f"}}]},
            "messages[1].tool_calls[0].function.arguments",
        ),
        (
            {"role": "assistant", "reasoning": "a", "reasoning_content": "b"},
            "messages[1].reasoning_content",
        ),
        (
            {"role": "tool", "content": "x", "tool_call_id": "call_9"},
            "messages[1].tool_call_id",
        ),
    ],
)
async def test_a_bad_message_is_refused_by_its_path(
    refused: Fixture, message: dict[str, Any], param: str
) -> None:
    error = await refused(messages=[{"role": "user", "content": "Hi"}, message])
    assert error["param"] == param


@pytest.mark.parametrize(
    "message",
    [
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
        {"role": "user", "content": "Hi", "name": "Ann"},
        {"role": "user", "content": []},
        {"role": "assistant", "content": None, "refusal": "No."},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        {"role": "assistant", "content": "Hi", "reasoning": "a", "reasoning_content": "a"},
        {"role": "assistant", "content": "x", "annotations": [], "audio": None, "tool_calls": None},
    ],
)
async def test_every_shape_of_message_is_accepted(post: Fixture, message: dict[str, Any]) -> None:
    response = await post(messages=[message, {"role": "user", "content": "Hi"}])
    assert response.status_code == 200, response.text


@pytest.mark.parametrize("content", ["17", [{"type": "text", "text": "17"}], [], "", None])
async def test_tool_results_come_in_every_shape(post: Fixture, content: Any) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "not json"}}
    history = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "One moment.", "reasoning": "r", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": content, "name": "f"},
    ]
    response = await post(messages=history, tools=[TOOL])
    assert response.status_code == 200, response.text
