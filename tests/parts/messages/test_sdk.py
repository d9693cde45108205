"""The real anthropic SDK as a client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel

from auth.authenticators import ApiKeys

if TYPE_CHECKING:  # importing it takes a second and more: not for all who collect
    from anthropic import AsyncAnthropic

Serve = Callable[..., Awaitable[str]]

MODEL = "gpt-oss-20b"
THOUGHT = "<|channel|>analysis<|message|>The user greets.<|end|><|start|>assistant"
HELLO = THOUGHT + "<|channel|>final<|message|>Grüße, 👩‍🚀!<|return|>"
CALL = (
    "<|channel|>analysis<|message|>Look it up.<|end|><|start|>assistant"
    "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
    '{"city": "Köln"}<|call|>'
)
REPORT = THOUGHT + "<|channel|>final<|message|>It is 4 °C in Köln.<|return|>"
WEATHER: Any = {
    "name": "get_weather",
    "description": "Get the current weather in a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}


@pytest.fixture
async def client_of() -> AsyncIterator[Callable[[str], AsyncAnthropic]]:
    from anthropic import AsyncAnthropic

    clients: list[AsyncAnthropic] = []

    def make(url: str, key: str = "none") -> AsyncAnthropic:
        clients.append(AsyncAnthropic(base_url=url, api_key=key, max_retries=0))
        return clients[-1]

    yield make
    for client in clients:
        await client.close()


def ask(text: str = "Hello!", **changes: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {"model": MODEL, "max_tokens": 2000, "messages": messages} | changes


async def test_a_message_and_its_count(serve: Serve, client_of: Any) -> None:
    client = client_of(await serve(HELLO))
    message = await client.messages.create(**ask(), extra_headers={"X-Request-Id": "mine-1"})
    assert message._request_id == "mine-1"
    assert [block.text for block in message.content] == ["Grüße, 👩‍🚀!"]
    assert message.stop_reason == "end_turn"
    count = await client.messages.count_tokens(model=MODEL, messages=ask()["messages"])
    assert count.input_tokens == message.usage.input_tokens


async def test_a_stream_adds_up(serve: Serve, client_of: Any) -> None:
    client = client_of(await serve(HELLO, HELLO))
    request = ask(thinking={"type": "adaptive"})
    whole = await client.messages.create(**request)
    kinds, texts = [], []
    async with client.messages.stream(**request) as stream:
        async for event in stream:
            kinds.append(event.type)
            if event.type == "text":
                texts.append(event.text)
        streamed = await stream.get_final_message()
    assert [block.type for block in streamed.content] == ["thinking", "text"]
    exclude = {"id", "usage", "parsed_output"}
    assert [b.model_dump(exclude=exclude) for b in streamed.content] == [
        b.model_dump(exclude=exclude) for b in whole.content
    ]
    assert "".join(texts) == whole.content[1].text
    assert streamed.stop_reason == whole.stop_reason
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    assert {"thinking", "signature", "content_block_stop", "message_stop"} <= {*kinds}


async def test_a_tool_loop_by_hand(serve: Serve, client_of: Any) -> None:
    client = client_of(await serve(CALL, REPORT))
    request = ask("Weather in Köln?", tools=[WEATHER], thinking={"type": "adaptive"})
    async with client.messages.stream(**request) as stream:
        first = await stream.get_final_message()
    call = first.content[-1]
    assert first.stop_reason == "tool_use"
    assert (call.name, call.input) == ("get_weather", {"city": "Köln"})
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "4 °C"}
    request["messages"] += [
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [result]},
    ]
    second = await client.messages.create(**request)
    assert second.content[-1].text == "It is 4 °C in Köln."
    request["messages"][1]["content"] = [block.model_dump() for block in first.content]
    assert (await client.messages.create(**request)).stop_reason == "tool_use"


async def test_the_tool_runner(serve: Serve, client_of: Any) -> None:
    from anthropic.lib.tools import beta_async_tool

    asked: list[str] = []

    @beta_async_tool  # type: ignore[untyped-decorator]
    async def get_weather(city: str) -> str:
        """Get the current weather in a city.

        Args:
            city: The name of the city
        """
        asked.append(city)
        return "4 °C"

    client = client_of(await serve(CALL, REPORT))
    runner = client.beta.messages.tool_runner(**ask("Weather?"), tools=[get_weather])
    last = await runner.until_done()
    assert asked == ["Köln"]
    assert last.content[-1].text == "It is 4 °C in Köln."


async def test_structured_output_is_parsed(serve: Serve, client_of: Any) -> None:
    class City(BaseModel):
        name: str

    script = '<|channel|>final <|constrain|>json<|message|>{"name": "Köln"}<|return|>'
    client = client_of(await serve(script))
    message = await client.messages.parse(**ask(), output_format=City)
    assert message.parsed_output == City(name="Köln")


@pytest.mark.parametrize(
    ("changes", "key", "error"),
    [
        ({"model": "other"}, "right", "NotFoundError"),
        ({"max_tokens": -1}, "right", "BadRequestError"),
        ({}, "wrong", "AuthenticationError"),
    ],
)
async def test_errors_are_the_sdks_own(
    serve: Serve, client_of: Any, changes: dict[str, Any], key: str, error: str
) -> None:
    import anthropic

    client = client_of(await serve(HELLO, authenticator=ApiKeys(["right"])), key)
    with pytest.raises(getattr(anthropic, error)) as caught:
        await client.messages.create(**ask(**changes))
    assert isinstance(caught.value, anthropic.APIStatusError)
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["type"] == "error"


async def test_an_error_in_mid_stream_is_raised(serve: Serve, client_of: Any) -> None:
    import anthropic

    client = client_of(await serve(HELLO, fail_at=5))
    with pytest.raises(anthropic.APIStatusError, match="script fails"):
        async with client.messages.stream(**ask(thinking={"type": "adaptive"})) as stream:
            await stream.get_final_message()
