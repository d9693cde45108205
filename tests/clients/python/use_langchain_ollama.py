"""langchain-ollama."""

import os
from functools import reduce
from operator import add

from langchain_core.messages import HumanMessage
from langchain_core.tools import StructuredTool
from langchain_ollama import ChatOllama
from pydantic import BaseModel

URL, KEY = os.environ["HARMONIUM_URL"], os.environ["HARMONIUM_API_KEY"]
# Configuration:
MODEL = ChatOllama(
    model="gpt-oss:20b",
    base_url=URL,
    client_kwargs={"headers": {"Authorization": f"Bearer {KEY}"}},
    reasoning=True,
    validate_model_on_init=True,
)

QUESTION = HumanMessage("What is the weather in Zürich?")
ANSWER = "It is sunny in Zürich."


class Report(BaseModel):
    """A weather report."""

    city: str
    degrees: int


def _weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


WEATHER = StructuredTool.from_function(_weather, name="weather")


def chat():
    answer = MODEL.invoke([QUESTION])
    assert answer.text == ANSWER
    assert answer.usage_metadata["output_tokens"] > 0


def stream():
    chunks = list(MODEL.stream([QUESTION]))
    assert reduce(add, chunks).text == ANSWER


def tools():
    bound = MODEL.bind_tools([WEATHER])
    for message in (bound.invoke([QUESTION]), reduce(add, list(bound.stream([QUESTION])))):
        (call,) = message.tool_calls
        assert (call["name"], call["args"]) == ("weather", {"city": "Zürich"})
        assert message.additional_kwargs["reasoning_content"]
        assert bound.invoke([QUESTION, message, WEATHER.invoke(call)]).text == ANSWER


def structured():
    assert MODEL.with_structured_output(Report).invoke([QUESTION]).degrees == 21
