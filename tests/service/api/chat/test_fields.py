"""Every field of the published schema is supported, accepted without effect, or refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat.completion_create_params import (
    CompletionCreateParamsNonStreaming,
    CompletionCreateParamsStreaming,
)

from engines.base import EngineRequest
from engines.fake.engine import FakeEngine
from engines.fake.sequence import FakeOptions
from service.api.chat.schema import NO_EFFECT, REFUSED, ChatRequest
from service.harmony import vocabulary

Fixture = Callable[..., Any]

DOCS = (Path(__file__).parents[4] / "docs" / "api.md").read_text()
PATH = "/v1/chat/completions"
TOOL = {"type": "function", "function": {"name": "f"}}
WITHOUT_EFFECT: list[dict[str, Any]] = [
    {"user": "someone"},
    {"metadata": {"team": "a"}},
    {"store": True},
    {"service_tier": "flex"},
    {"safety_identifier": "someone"},
    {"prompt_cache_key": "key"},
    {"prompt_cache_retention": "24h"},
    {"prompt_cache_options": {"mode": "implicit"}},
    {"verbosity": "medium"},
    {"modalities": ["text"]},
    {"response_format": {"type": "text"}},
    {"parallel_tool_calls": True},
    {"tool_choice": "auto"},
    {"stream": False},
    {"stream": True, "stream_options": {"include_obfuscation": True}},
]


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


def test_no_field_of_the_published_schema_is_forgotten() -> None:
    published = {
        name
        for params in (CompletionCreateParamsNonStreaming, CompletionCreateParamsStreaming)
        for name in params.__annotations__
    }
    assert {"messages", "tools", "stream", "web_search_options"} <= published
    assert published - ChatRequest.model_fields.keys() == set()


def test_the_documentation_names_every_field() -> None:
    missing = [name for name in ChatRequest.model_fields if f"`{name}`" not in DOCS]
    assert missing == []
    assert [reason for reason in (NO_EFFECT | REFUSED).values() if reason not in DOCS] == []


def test_each_field_without_effect_is_tried_here() -> None:
    assert {name for changes in WITHOUT_EFFECT for name in changes} >= NO_EFFECT.keys()


@pytest.mark.parametrize("changes", WITHOUT_EFFECT, ids=lambda changes: next(iter(changes)))
async def test_a_field_without_effect_is_accepted_and_changes_nothing(
    make_runtime: Fixture, make_client: Fixture, chat_body: Fixture, changes: dict[str, Any]
) -> None:
    requests: list[EngineRequest] = []

    def script(request: EngineRequest) -> list[int]:
        requests.append(request)
        return [vocabulary.RETURN]

    runtime = make_runtime(engine=FakeEngine(FakeOptions(script=(1,)), script))
    client = await make_client(runtime)
    for body in (chat_body(), chat_body(**changes)):
        response = await client.post(PATH, json=body, headers={"X-Request-Id": "same"})
        assert response.status_code == 200, response.text
    assert requests[0] == requests[1]


@pytest.mark.parametrize("name", REFUSED)
async def test_a_refused_field_is_named_with_the_reason(refused: Fixture, name: str) -> None:
    error = await refused(**{name: {}})
    assert error["param"] == name
    assert error["code"] == "unsupported_parameter"
    assert REFUSED[name] in error["message"]


@pytest.mark.parametrize("name", [*REFUSED, *NO_EFFECT, "tools", "stop", "seed", "n", "logit_bias"])
async def test_null_is_the_same_as_leaving_a_field_out(post: Fixture, name: str) -> None:
    assert (await post(**{name: None})).status_code == 200


@pytest.mark.parametrize(
    ("changes", "param", "word"),
    [
        ({"colour": "red"}, "colour", "not a field"),
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": "hi"}, "messages", "list"),
        ({"messages": [{"role": "king", "content": ""}]}, "messages[0]", "king"),
        ({"messages": [{"content": ""}]}, "messages[0]", "role is required"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "required"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content", "string"),
        ({"messages": [{"role": "user", "content": "", "x": 1}]}, "messages[0].x", "not a field"),
        ({"temperature": 2.1}, "temperature", "2.1"),
        ({"temperature": "0.5"}, "temperature", "number"),
        ({"temperature": True}, "temperature", "number"),
        ({"top_p": 0}, "top_p", "greater than 0"),
        ({"top_k": -2}, "top_k", "-2"),
        ({"min_p": 1.5}, "min_p", "1.5"),
        ({"presence_penalty": -3}, "presence_penalty", "-3"),
        ({"frequency_penalty": 3}, "frequency_penalty", "3"),
        ({"repetition_penalty": 0}, "repetition_penalty", "0"),
        ({"n": 0}, "n", "0"),
        ({"n": 129}, "n", "128"),
        ({"max_tokens": 0}, "max_tokens", "0"),
        ({"max_tokens": 1.5}, "max_tokens", "integer"),
        ({"max_tokens": 10**25}, "max_tokens", "less than"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens", "differ"),
        ({"seed": 2**63}, "seed", "less than"),
        ({"stop": ""}, "stop", "at least 1"),
        ({"stop": ["a"] * 17}, "stop", "16"),
        ({"stop": ["a", ""]}, "stop[1]", "at least 1"),
        ({"logprobs": 1}, "logprobs", "boolean"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs", "20"),
        ({"top_logprobs": 2}, "top_logprobs", "logprobs: true"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream: true"),
        ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x", "not a field"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "'x'"),
        ({"logit_bias": {"-1": 1}}, "logit_bias", "'-1'"),
        ({"logit_bias": {"201088": 1}}, "logit_bias", "201087"),
        ({"logit_bias": {"٣": 1}}, "logit_bias", "token ids"),
        ({"logit_bias": {"1": 101}}, "logit_bias.1", "100"),
        ({"reasoning_effort": "extreme"}, "reasoning_effort", "extreme"),
        ({"verbosity": "low"}, "verbosity", "instructions"),
        ({"modalities": ["text", "audio"]}, "modalities", "text only"),
        ({"tool_choice": "never"}, "tool_choice", "auto"),
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


async def test_an_unknown_model_is_a_404_that_names_the_served_one(post: Fixture) -> None:
    response = await post(model="gpt-17")
    assert response.status_code == 404
    error = response.json()["error"]
    assert error["code"] == "model_not_found"
    assert "gpt-17" in error["message"]
    assert "gpt-oss-20b" in error["message"]
