"""What the fields of Anthropic's API become: the prompt, the sampling, or a refusal by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engines.base import EngineRequest
from service.harmony.vocabulary import decode_marked
from tests.fake.engine import FakeEngine
from tests.fake.sequence import FakeOptions

Fixture = Callable[..., Any]

PATH = "/v1/messages"
HEADERS = {"user_profile_id", "workspace_id", "betas"}  # the SDK sends these as headers
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"name": "get_weather", "description": "Weather.", "input_schema": SCHEMA}
CHAT_TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Weather.", "parameters": SCHEMA},
}


@pytest.fixture
async def run(make_runtime: Fixture, make_client: Fixture) -> Any:
    """Post a body; give the request that reached the engine."""
    seen: list[EngineRequest] = []

    def script(request: EngineRequest) -> tuple[int, ...]:
        seen.append(request)
        return (200002,)

    client = await make_client(make_runtime(engine=FakeEngine(FakeOptions(), script)))

    async def post(body: dict[str, Any], path: str = PATH) -> EngineRequest:
        response = await client.post(path, json=body)
        assert response.status_code == 200, response.text
        return seen[-1]

    return post


@pytest.fixture
async def refused(make_runtime: Fixture, make_client: Fixture, message_body: Fixture) -> Any:
    """Post a body that must be refused; give the message."""
    client = await make_client(make_runtime("<|return|>"))

    async def post(**changes: Any) -> str:
        response = await client.post(PATH, json=message_body(**changes))
        assert response.status_code == 400, response.text
        message: str = response.json()["error"]["message"]
        return message

    return post


async def test_the_same_conversation_is_the_same_prompt_as_on_the_chat_route(
    run: Fixture, message_body: Fixture, chat_body: Fixture
) -> None:
    mine = await run(
        message_body(
            system=[{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}],
            tools=[TOOL],
            messages=[
                {"role": "user", "content": "Weather?"},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "redacted_thinking", "data": "xyz"},
                        {"type": "thinking", "thinking": "Look.", "signature": "s"},
                        {"type": "text", "text": "A moment."},
                        {
                            "type": "tool_use",
                            "id": "t1",
                            "name": "get_weather",
                            "input": {"city": "Köln"},
                        },
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "tool_result",
                            "tool_use_id": "t1",
                            "content": [{"type": "text", "text": "4 °C"}],
                        },
                        {"type": "text", "text": "And "},
                        {"type": "text", "text": "tomorrow?", "cache_control": None},
                    ],
                },
            ],
        )
    )
    call = {"name": "get_weather", "arguments": '{"city":"Köln"}'}
    chat = await run(
        chat_body(
            tools=[CHAT_TOOL],
            messages=[
                {"role": "system", "content": "One."},
                {"role": "system", "content": "Two."},
                {"role": "user", "content": "Weather?"},
                {
                    "role": "assistant",
                    "content": "A moment.",
                    "reasoning": "Look.",
                    "tool_calls": [{"id": "t1", "type": "function", "function": call}],
                },
                {"role": "tool", "tool_call_id": "t1", "content": "4 °C"},
                {"role": "user", "content": "And tomorrow?"},
            ],
        ),
        "/v1/chat/completions",
    )
    assert mine.prompt_token_ids == chat.prompt_token_ids
    assert mine.stop_token_ids == chat.stop_token_ids


async def test_a_failed_call_is_told_to_the_model(run: Fixture, message_body: Fixture) -> None:
    call = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": "gone", "is_error": True}
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]
    request = await run(message_body(messages=messages))
    assert "<|message|>Error: gone<|end|>" in decode_marked(request.prompt_token_ids)


@pytest.mark.parametrize(
    ("changes", "effort"),
    [
        ({}, "medium"),
        ({"thinking": {"type": "disabled"}}, "low"),
        ({"thinking": {"type": "adaptive"}}, "medium"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "low"),
        ({"thinking": {"type": "enabled", "budget_tokens": 4096}}, "medium"),
        ({"thinking": {"type": "enabled", "budget_tokens": 31_999}}, "high"),
        ({"output_config": {"effort": "low"}}, "low"),
        ({"output_config": {"effort": "max"}, "thinking": {"type": "disabled"}}, "high"),
    ],
)
async def test_effort_reaches_the_prompt(
    run: Fixture, message_body: Fixture, changes: dict[str, Any], effort: str
) -> None:
    """Effort is never lost on the way (tenstorrent/tt-inference-server#4672)."""
    request = await run(message_body(max_tokens=40_000, **changes))
    assert f"Reasoning: {effort}\n" in decode_marked(request.prompt_token_ids)


async def test_sampling_reaches_the_engine(run: Fixture, message_body: Fixture) -> None:
    sampling = (await run(message_body(temperature=0.5, top_p=0.9, top_k=40))).sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 40)
    assert sampling.max_tokens == 1000
    assert (await run(message_body())).sampling.temperature == 1.0


@pytest.mark.parametrize(
    ("changes", "is_guided"),
    [
        ({}, False),
        ({"tool_choice": {"type": "auto"}}, False),
        ({"tool_choice": {"type": "any"}}, True),
        ({"tool_choice": {"type": "tool", "name": "get_weather"}}, True),
        ({"thinking": {"type": "enabled", "budget_tokens": 100}}, True),
        ({"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}, True),
        ({"tools": [TOOL | {"strict": True}]}, True),
    ],
)
async def test_what_must_hold_becomes_a_grammar(
    run: Fixture, message_body: Fixture, changes: dict[str, Any], is_guided: bool
) -> None:
    request = await run(message_body(**({"tools": [TOOL]} | changes)))
    assert (request.grammar is not None) == is_guided


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}])
async def test_a_call_may_be_forced_behind_an_answer(
    run: Fixture, message_body: Fixture, choice: dict[str, Any]
) -> None:
    """LangGraph asks so for a structured form of what was answered: nothing is begun."""
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "Sunny."}]
    request = await run(message_body(messages=messages, tools=[TOOL], tool_choice=choice))
    end = "<|channel|>final<|message|>Sunny.<|end|><|start|>assistant"
    assert decode_marked(request.prompt_token_ids).endswith(end)
    assert request.grammar is not None


async def test_no_choice_hides_the_tools(run: Fixture, message_body: Fixture) -> None:
    """vllm#30867: with `none` the model is not shown the tools."""
    request = await run(message_body(tools=[TOOL], tool_choice={"type": "none"}))
    assert "get_weather" not in decode_marked(request.prompt_token_ids)
    assert request.grammar is None


@pytest.mark.parametrize("system", [None, "Greet the user."])
async def test_without_messages_the_model_reads_the_instructions(
    run: Fixture, message_body: Fixture, system: str | None
) -> None:
    """llama.cpp's server tests ask for it; Anthropic refuses it."""
    request = await run(message_body(messages=[], system=system))
    prompt = decode_marked(request.prompt_token_ids)
    assert prompt.endswith("<|end|><|start|>assistant")
    assert "<|start|>user" not in prompt
    assert ("Greet the user." in prompt) is (system is not None)


IMAGE = {"type": "image", "source": {"type": "url", "url": "http://x"}}
USE = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "b", "content": "x"}


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"speed": "fast"}, "speed"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [USE]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": [RESULT]}]},
            "messages[0].content[0].tool_use_id",
        ),
        (
            {"messages": [{"role": "assistant", "content": [USE, USE]}]},
            "messages[0].content[1].id",
        ),
        (
            {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]},
            "last message",
        ),
        ({"tools": [{"type": "computer_20250124", "name": "computer"}]}, "tools[0].type"),
        ({"tools": [TOOL | {"allowed_callers": ["code"]}]}, "tools[0].allowed_callers"),
        ({"tools": [TOOL, TOOL]}, "tools[1].name"),
        ({"tools": [TOOL | {"name": "a b"}]}, "tools[0].name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "f"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "auto"}, "tool_choice"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1000}}, "thinking.budget_tokens"),
    ],
)
async def test_what_cannot_be_done_is_refused_by_name(
    refused: Fixture, changes: dict[str, Any], path: str
) -> None:
    assert path in await refused(**changes)
