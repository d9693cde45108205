"""The Agents SDK of OpenAI runs its tool loop against us, over both of its models."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import openai
import pytest
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from pydantic import BaseModel

Fixture = Callable[..., Any]

pytestmark = pytest.mark.conformance

MODEL = "gpt-oss-20b"
THOUGHT = "<|channel|>analysis<|message|>I need the weather.<|end|><|start|>assistant"
CALL = THOUGHT + (
    "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
    '{"city": "Zürich"}<|call|>'
)
ANSWER = "<|channel|>final<|message|>It is sunny in Zürich.<|return|>"
JSON = '<|channel|>final <|constrain|>json<|message|>{"city": "Zürich", "degrees": 21}<|return|>'


class Report(BaseModel):
    city: str
    degrees: int


@pytest.fixture(
    params=[OpenAIChatCompletionsModel, OpenAIResponsesModel], ids=["chat", "responses"]
)
async def make_agent(request: pytest.FixtureRequest, serve: Fixture) -> AsyncIterator[Fixture]:
    """An agent whose model writes the scripts in turn; it notes the cities it is asked for."""
    set_tracing_disabled(True)
    clients: list[openai.AsyncOpenAI] = []

    def make(*scripts: str, cities: list[str] | None = None, **options: Any) -> Any:
        def weather(city: str) -> str:
            """The weather in a city."""
            if cities is not None:
                cities.append(city)
            return "sunny"

        url = serve(*scripts, tokens_per_step=2)
        clients.append(openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0))
        model = request.param(model=MODEL, openai_client=clients[-1])
        return Agent(name="A", model=model, tools=[function_tool(weather)], **options)

    yield make
    for client in clients:
        await client.close()


async def test_the_tool_loop_goes_round(make_agent: Fixture) -> None:
    """vllm#27653: what the first turn gave comes back and is understood."""
    cities: list[str] = []
    agent = make_agent(CALL, ANSWER, cities=cities, instructions="Be brief.")
    result = await Runner.run(agent, "How is the weather in Zürich?")
    assert result.final_output == "It is sunny in Zürich."
    assert cities == ["Zürich"]
    first, second = [response.usage for response in result.raw_responses]
    assert 0 < first.input_tokens < second.input_tokens


async def test_the_streamed_tool_loop_goes_round(make_agent: Fixture) -> None:
    cities: list[str] = []
    agent = make_agent(CALL, ANSWER, cities=cities)
    result = Runner.run_streamed(agent, "How is the weather in Zürich?")
    texts = [
        event.data.delta
        async for event in result.stream_events()
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
    ]
    assert "".join(texts) == result.final_output == "It is sunny in Zürich."
    assert cities == ["Zürich"]


async def test_a_forced_call_and_then_an_answer_of_a_type(make_agent: Fixture) -> None:
    cities: list[str] = []
    settings = ModelSettings(tool_choice="required", parallel_tool_calls=False)
    agent = make_agent(CALL, JSON, cities=cities, model_settings=settings, output_type=Report)
    result = await Runner.run(agent, "How is the weather in Zürich?")
    assert result.final_output == Report(city="Zürich", degrees=21)
    assert cities == ["Zürich"]


async def test_a_second_turn_follows_the_first(make_agent: Fixture) -> None:
    agent = make_agent(CALL, ANSWER, ANSWER)
    first = await Runner.run(agent, "How is the weather in Zürich?")
    again = [*first.to_input_list(), {"role": "user", "content": "Say it again."}]
    second = await Runner.run(agent, again)
    assert second.final_output == first.final_output
