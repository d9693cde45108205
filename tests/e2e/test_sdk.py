"""The real openai SDK against a server started as a user starts it."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import openai
import pytest
from openai import OpenAI

from tests import plain

if TYPE_CHECKING:
    from tests.e2e.conftest import Server

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "The name of the city"}},
            "required": ["city"],
        },
    },
}


def test_chat_answers_with_reasoning_apart_from_content(client: OpenAI, model: str) -> None:
    answer = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "Hello!"}], temperature=0
    )
    choice = answer.choices[0]
    assert choice.finish_reason == "stop"
    assert choice.message.content
    assert "<|" not in choice.message.content
    assert choice.message.model_extra is not None
    assert choice.message.model_extra["reasoning"]
    assert answer.usage is not None
    assert answer.usage.completion_tokens_details is not None
    reasoning_tokens = answer.usage.completion_tokens_details.reasoning_tokens
    assert reasoning_tokens is not None
    assert 0 < reasoning_tokens < answer.usage.completion_tokens


def test_a_streamed_chat_adds_up_to_the_same_answer(client: OpenAI, model: str) -> None:
    request: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": "What can you do?"}],
        "temperature": 0,
    }
    whole = client.chat.completions.create(**request)
    stream = client.chat.completions.create(
        **request, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    content = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert content == whole.choices[0].message.content
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"


def test_a_two_turn_tool_loop_ends_with_the_tools_result(client: OpenAI, model: str) -> None:
    messages: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
    first = client.chat.completions.create(
        model=model, messages=messages, tools=[WEATHER], temperature=0
    )
    assert first.choices[0].finish_reason == "tool_calls"
    calls = first.choices[0].message.tool_calls
    assert calls is not None
    assert calls[0].type == "function"
    assert calls[0].function.name == "get_weather"
    assert json.loads(calls[0].function.arguments)["city"] == "Paris"
    messages.append(first.choices[0].message.model_dump(exclude_none=True))
    messages.append({"role": "tool", "tool_call_id": calls[0].id, "content": '{"temperature": 17}'})
    second = client.chat.completions.create(
        model=model, messages=messages, tools=[WEATHER], temperature=0
    )
    assert second.choices[0].finish_reason == "stop"
    assert "17" in (second.choices[0].message.content or "")


def test_sixteen_streams_at_once_all_end_well(client: OpenAI, model: str) -> None:
    def stream(number: int) -> tuple[str, str | None]:
        chunks = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "Hello!"}],
            temperature=0,
            seed=number,
            stream=True,
        )
        choices = [chunk.choices[0] for chunk in chunks]
        return "".join(c.delta.content or "" for c in choices), choices[-1].finish_reason

    with ThreadPoolExecutor(16) as pool:
        answers = set(pool.map(stream, range(16)))
    assert len(answers) == 1, "greedy answers must not depend on their neighbours"
    content, finish_reason = answers.pop()
    assert content
    assert finish_reason == "stop"


def test_the_same_seed_repeats_a_sampled_answer(client: OpenAI, model: str) -> None:
    def answer() -> str:
        completion = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "Tell me about yourself."}],
            temperature=1.5,
            seed=7,
            max_tokens=64,
        )
        return str(completion.choices[0].message.model_dump_json(exclude={"tool_calls"}))

    assert answer() == answer()


def test_a_client_that_disconnects_frees_its_sequence_and_blocks(
    server: Server, model: str
) -> None:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "Hello!"}],
        "logit_bias": {"200002": -100, "200007": -100, "200012": -100},  # it would never end
        "stream": True,
    }
    with plain.stream("POST", f"{server.url}/v1/chat/completions", json=body) as response:
        lines = response.iter_lines()
        assert next(lines).startswith("data: ")
        server.wait_for_metric("harmonium_engine_running_requests", 1)
    server.wait_for_metric("harmonium_engine_running_requests", 0)
    server.wait_for_metric("harmonium_engine_kv_usage_ratio", 0)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"messages": []}, "messages"),
        ({"temperature": "hot"}, "temperature"),
        ({"no_such_field": 1}, "no_such_field"),
    ],
)
def test_a_bad_body_is_a_400_that_names_the_field(
    client: OpenAI, model: str, change: dict[str, Any], param: str
) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "model": model} | change
    with pytest.raises(openai.BadRequestError) as caught:
        client.post("/chat/completions", body=body, cast_to=object)
    assert caught.value.param is not None
    assert param in caught.value.param


def test_an_unknown_model_is_a_404(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-17", messages=[{"role": "user", "content": "Hi"}])
    assert caught.value.code == "model_not_found"
    assert "gpt-17" in caught.value.message
