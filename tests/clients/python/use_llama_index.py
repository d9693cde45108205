"""llama-index with OpenAILike: chat completions."""

import os

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

URL, KEY = os.environ["HARMONIUM_URL"], os.environ["HARMONIUM_API_KEY"]
# Configuration:
llm = OpenAILike(
    model="gpt-oss-20b",
    api_base=f"{URL}/v1",
    api_key=KEY,
    is_chat_model=True,
    is_function_calling_model=True,
)

QUESTION = "What is the weather in Zürich?"
ANSWER = "It is sunny in Zürich."


class Report(BaseModel):
    city: str
    degrees: int


def weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


def chat():
    assert llm.chat([ChatMessage(role="user", content=QUESTION)]).message.content == ANSWER


def stream():
    chunks = list(llm.stream_chat([ChatMessage(role="user", content=QUESTION)]))
    assert "".join(chunk.delta for chunk in chunks) == ANSWER


async def tools():
    agent = FunctionAgent(tools=[FunctionTool.from_defaults(weather)], llm=llm)
    assert str(await agent.run(QUESTION)) == ANSWER


def structured():
    for strict in (False, True):
        model = llm.model_copy(update={"should_use_structured_outputs": strict})
        report = model.as_structured_llm(Report).complete(QUESTION).raw
        assert report == Report(city="Zürich", degrees=21)
