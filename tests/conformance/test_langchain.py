"""langchain-openai as a client: tools, structured output, streams, on both of its routes."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import add
from typing import Any

import pytest
from langchain_core.messages import AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.tools import StructuredTool
from langchain_openai import ChatOpenAI
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
REPORT_CALL = CALL.replace("functions.weather", "functions.Report").replace(
    '{"city": "Zürich"}', '{"city": "Zürich", "degrees": 21}'
)


class Report(BaseModel):
    """A weather report."""

    city: str
    degrees: int


def weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


WEATHER = StructuredTool.from_function(weather)


@pytest.fixture(params=[False, True], ids=["chat", "responses"])
def chat(request: pytest.FixtureRequest, serve: Fixture) -> Fixture:
    """LangChain's model over a server whose model writes the scripts in turn."""

    def make(*scripts: str, **options: Any) -> Any:
        url = serve(*scripts, **options)
        return ChatOpenAI(
            model=MODEL,
            base_url=f"{url}/v1",
            api_key="none",
            max_retries=0,
            stream_usage=True,
            use_responses_api=request.param,
        )

    return make


def test_a_tool_loop_goes_round(chat: Fixture) -> None:
    """langchain#34751: the assistant's message comes back as LangChain writes it."""
    model = chat(CALL, ANSWER).bind_tools([WEATHER])
    question = HumanMessage("How is the weather in Zürich?")
    message = model.invoke([question])
    (call,) = message.tool_calls
    assert (call["name"], call["args"]) == ("weather", {"city": "Zürich"})
    result = WEATHER.invoke(call)
    assert isinstance(result, ToolMessage)
    last = model.invoke([question, message, result])
    assert last.text == "It is sunny in Zürich."
    assert last.usage_metadata["input_tokens"] > message.usage_metadata["input_tokens"]


def test_a_streamed_call_adds_up(chat: Fixture) -> None:
    chunks = list(chat(CALL).bind_tools([WEATHER]).stream("How is the weather in Zürich?"))
    whole = reduce(add, chunks)
    assert isinstance(whole, AIMessageChunk)
    (call,) = whole.tool_calls
    assert (call["name"], call["args"]) == ("weather", {"city": "Zürich"})
    assert whole.usage_metadata["output_token_details"]["reasoning"] > 0


def test_a_streamed_answer_adds_up(chat: Fixture) -> None:
    chunks = list(chat(THOUGHT + ANSWER, step_s=0.02).stream("How is the weather in Zürich?"))
    assert reduce(add, chunks).text == "It is sunny in Zürich."
    assert sum(bool(chunk.text) for chunk in chunks) > 1


@pytest.mark.parametrize("method", ["json_schema", "function_calling", "json_mode"])
def test_structured_output_is_of_its_type(chat: Fixture, method: str) -> None:
    script = REPORT_CALL if method == "function_calling" else JSON
    model = chat(script).with_structured_output(Report, method=method)
    assert model.invoke("Report as JSON.") == Report(city="Zürich", degrees=21)


def test_a_named_tool_is_asked_for(chat: Fixture) -> None:
    model = chat(CALL).bind_tools([WEATHER], tool_choice="weather", strict=True)
    (call,) = model.invoke("Weather?").tool_calls
    assert call["name"] == "weather"
