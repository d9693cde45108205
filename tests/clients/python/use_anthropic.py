"""anthropic, the Python SDK."""

import os

import anthropic
from anthropic import Anthropic, beta_tool
from pydantic import BaseModel

URL, KEY = os.environ["HARMONIUM_URL"], os.environ["HARMONIUM_API_KEY"]
# Configuration:
client = Anthropic(base_url=URL, api_key=KEY)

MODEL = "gpt-oss-20b"
MESSAGES = [{"role": "user", "content": "What is the weather in Zürich?"}]
ANSWER = "It is sunny in Zürich."


class Report(BaseModel):
    city: str
    degrees: int


@beta_tool
def weather(city: str) -> str:
    """The weather in a city."""
    assert city == "Zürich"
    return "sunny"


def chat():
    message = client.messages.create(model=MODEL, max_tokens=500, messages=MESSAGES)
    assert message.content[-1].text == ANSWER
    assert message.stop_reason == "end_turn"


def thinking():
    message = client.messages.create(
        model=MODEL,
        max_tokens=2000,
        messages=MESSAGES,
        thinking={"type": "enabled", "budget_tokens": 1024},
    )
    thought, text = message.content
    assert (thought.thinking, text.text) == ("I know the answer.", ANSWER)


def stream():
    with client.messages.stream(model=MODEL, max_tokens=500, messages=MESSAGES) as events:
        texts = list(events.text_stream)
        message = events.get_final_message()
    assert "".join(texts) == message.content[-1].text == ANSWER


def tools():
    """The SDK's own loop, which sends the thinking back."""
    runner = client.beta.messages.tool_runner(
        model=MODEL, max_tokens=500, tools=[weather], messages=MESSAGES
    )
    first, last = runner
    assert first.stop_reason == "tool_use"
    assert last.content[-1].text == ANSWER


def structured():
    message = client.messages.parse(
        model=MODEL, max_tokens=500, messages=MESSAGES, output_format=Report
    )
    assert message.parsed_output == Report(city="Zürich", degrees=21)


def count_tokens():
    assert client.messages.count_tokens(model=MODEL, messages=MESSAGES).input_tokens > 0


def errors():
    try:
        client.messages.create(model="nobody", max_tokens=500, messages=MESSAGES)
    except anthropic.NotFoundError:
        return
    raise AssertionError("a model that is not there answered")
