"""ollama: its client for Python."""

import asyncio
import os

from ollama import AsyncClient, Client, ResponseError
from pydantic import BaseModel

URL, KEY = os.environ["HARMONIUM_URL"], os.environ["HARMONIUM_API_KEY"]
# Configuration:
CLIENT = Client(host=URL, headers={"Authorization": f"Bearer {KEY}"})

MODEL = "gpt-oss:20b"
MESSAGES = [{"role": "user", "content": "What is the weather in Zürich?"}]
ANSWER = "It is sunny in Zürich."


class Report(BaseModel):
    """A weather report."""

    city: str
    degrees: int


def weather(city: str) -> str:
    """
    The weather in a city.

    Args:
        city: its name
    """
    return f"sunny in {city}"


def chat():
    answer = CLIENT.chat(MODEL, MESSAGES)
    assert answer.message.content == ANSWER
    assert answer.done_reason == "stop"
    assert answer.total_duration > answer.eval_duration > 0
    assert answer.eval_count > 0


def stream():
    pieces = list(CLIENT.chat(MODEL, MESSAGES, stream=True, think="low", options={"seed": 1}))
    assert "".join(piece.message.content for piece in pieces) == ANSWER
    assert [piece.done for piece in pieces].count(True) == 1

    async def all_at_once():
        client = AsyncClient(host=URL, headers={"Authorization": f"Bearer {KEY}"})
        answers = [client.chat(MODEL, MESSAGES) for _ in range(3)]
        return await asyncio.gather(*answers)

    assert {answer.message.content for answer in asyncio.run(all_at_once())} == {ANSWER}


def tools():
    """The message goes back as the client has it, with the result by the tool's name."""
    for is_streamed in (False, True):
        answer = CLIENT.chat(MODEL, MESSAGES, tools=[weather], stream=is_streamed)
        messages = [piece.message for piece in answer] if is_streamed else [answer.message]
        [message] = [message for message in messages if message.tool_calls]
        [call] = message.tool_calls
        assert (call.function.name, call.function.arguments) == ("weather", {"city": "Zürich"})
        result = {"role": "tool", "tool_name": "weather", "content": weather("Zürich")}
        last = CLIENT.chat(MODEL, [*MESSAGES, message, result], tools=[weather])
        assert last.message.content == ANSWER


def structured():
    answer = CLIENT.chat(MODEL, MESSAGES, format=Report.model_json_schema())
    assert Report.model_validate_json(answer.message.content).degrees == 21


def generate():
    prompt = MESSAGES[0]["content"]
    assert CLIENT.generate(MODEL, prompt).response == ANSWER
    pieces = CLIENT.generate(MODEL, prompt, stream=True)
    assert "".join(piece.response for piece in pieces) == ANSWER


def models():
    names = [model.model for model in CLIENT.list().models]
    assert MODEL in names
    assert "tools" in CLIENT.show(MODEL).capabilities
    assert CLIENT.ps().models[0].context_length > 0
    for ask in (lambda: CLIENT.pull(MODEL), lambda: CLIENT.embed(MODEL, "text")):
        refused = None
        try:
            ask()
        except ResponseError as error:
            refused = error
        assert refused is not None
        assert refused.status_code == 400
        assert "is not supported" in refused.error
