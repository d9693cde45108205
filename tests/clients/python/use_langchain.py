"""langchain-openai: chat completions and responses."""

import os
from functools import reduce
from operator import add

from langchain_anthropic import ChatAnthropic
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import HumanMessage
from langchain_core.tools import StructuredTool
from langchain_openai import ChatOpenAI
from langchain_openai.decisions import Choice, OpenAIDecisions, Predicate, Score
from pydantic import BaseModel

URL, KEY = os.environ["HARMONIUM_URL"], os.environ["HARMONIUM_API_KEY"]
# Configuration:
MODEL = ChatOpenAI(model="gpt-oss-20b", base_url=f"{URL}/v1", api_key=KEY, stream_usage=True)

ANTHROPIC = ChatAnthropic(model="gpt-oss-20b", base_url=URL, api_key=KEY)
RESPONSES = MODEL.model_copy(update={"use_responses_api": True})
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
    for model in (MODEL, RESPONSES):
        assert model.invoke([QUESTION]).text == ANSWER


def stream():
    for model in (MODEL, RESPONSES):
        chunks = list(model.stream([QUESTION]))
        whole = reduce(add, chunks)
        assert whole.text == ANSWER
        assert whole.usage_metadata["output_token_details"]["reasoning"] > 0


def tools():
    """The assistant's message goes back as LangChain writes it, streamed or not."""
    for model in (MODEL, RESPONSES):
        bound = model.bind_tools([WEATHER])
        streamed = reduce(add, list(bound.stream([QUESTION])))
        for message in (bound.invoke([QUESTION]), streamed):
            (call,) = message.tool_calls
            assert (call["name"], call["args"]) == ("weather", {"city": "Zürich"})
            last = bound.invoke([QUESTION, message, WEATHER.invoke(call)])
            assert last.text == ANSWER


def tool_choice():
    for model in (MODEL, RESPONSES):
        (call,) = (
            model.bind_tools([WEATHER], tool_choice="weather", strict=True)
            .invoke([QUESTION])
            .tool_calls
        )
        assert call["name"] == "weather"


def structured():
    question = [HumanMessage(f"{QUESTION.content} Answer in JSON.")]
    for model in (MODEL, RESPONSES):
        for method in ("json_schema", "function_calling", "json_mode"):
            report = model.with_structured_output(Report, method=method).invoke(question)
            assert report == Report(city="Zürich", degrees=21)


def overflow():
    for model in (MODEL, RESPONSES, ANTHROPIC):
        try:
            model.invoke([HumanMessage("word " * 140_000)])
        except ContextOverflowError:
            continue
        raise AssertionError(model)


def decisions():
    """Answers by the names of their questions."""
    model = OpenAIDecisions(model="gpt-oss-20b", base_url=f"{URL}/v1", api_key=KEY)
    asked = {
        "weather": Predicate(instructions="Is it about the weather?"),
        "language": Choice(
            instructions="Which language is it?", choices={"en": "English", "de": "German"}
        ),
        "urgent": Score(instructions="How urgent is it?", levels=["not", "very"]),
    }
    answered = model.invoke({"input": QUESTION.content, "questions": asked})
    assert 0 <= answered.predicates["weather"].probability <= 1
    assert answered.choices["language"].choice in ("en", "de")
    assert 0 <= answered.scores["urgent"].score <= 1
