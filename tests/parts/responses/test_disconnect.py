"""A client that leaves a response in the foreground ends it; what there is stays readable."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from service.runtime import Runtime
from tests.fake.engine import FakeEngine
from tests.fake.sequence import FakeOptions

Fixture = Callable[..., Any]

MODEL = "gpt-oss-20b"
ENDLESS = (200005, 17196, 200008, 24912, 220)  # a final message without an end


@pytest.fixture
def endless(make_runtime: Fixture) -> Runtime:
    """A service whose model never stops by itself."""
    runtime: Runtime = make_runtime(engine=FakeEngine(FakeOptions(script=ENDLESS, step_s=0.002)))
    return runtime


async def until(condition: Callable[[], Any]) -> Any:
    async with asyncio.timeout(60):
        while not (value := await condition()):
            await asyncio.sleep(0.005)
    return value


async def is_idle(runtime: Runtime) -> bool:
    return (await runtime.engine.stats()).num_running == 0


async def test_leaving_a_stream_cancels_and_keeps_the_part(
    serve: Fixture, openai_sdk: Any, endless: Runtime
) -> None:
    client = await serve(endless)
    stream = await client.responses.create(model=MODEL, input="Hi", stream=True)
    async for event in stream:
        if event.type == "response.created":
            id = event.response.id
        if event.type == "response.output_text.delta":
            break
    await stream.close()
    await until(lambda: is_idle(endless))

    async def kept() -> Any:
        try:
            return await client.responses.retrieve(id)
        except openai_sdk.NotFoundError:
            return None

    response = await until(kept)
    assert response.status == "cancelled"
    assert response.output_text
    assert response.output[0].status == "incomplete"
    again = [event async for event in await client.responses.retrieve(id, stream=True)]
    assert again[-1].type == "response.incomplete"
    assert again[-1].response == response


async def test_leaving_a_whole_answer_cancels_it(
    serve: Fixture, openai_sdk: Any, endless: Runtime
) -> None:
    client = await serve(endless)
    with pytest.raises(openai_sdk.APITimeoutError):
        await client.responses.create(model=MODEL, input="Hi", timeout=0.3)
    await until(lambda: is_idle(endless))


async def test_while_nothing_comes_the_stream_is_kept_alive(
    make_runtime: Fixture, make_client: Fixture, body: Fixture, typed_events: Fixture, hello: str
) -> None:
    runtime = make_runtime(hello, step_s=0.05, sse_keepalive_s=0.01)
    client = await make_client(runtime)
    for changes in ({}, {"background": True}):
        response = await client.post("/v1/responses", json=body(stream=True, **changes))
        assert ": keep-alive\n\n" in response.text
        events = typed_events(response.text)
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert events[-1]["type"] == "response.completed"


async def test_a_draining_server_takes_no_more(
    make_runtime: Fixture, make_client: Fixture, body: Fixture, hello: str
) -> None:
    runtime = make_runtime(hello)
    client = await make_client(replace(runtime))
    made = (await client.post("/v1/responses", json=body())).json()
    await runtime.lifecycle.drain(1)
    refused = await client.post("/v1/responses", json=body(background=True))
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "not_ready")
    assert (await client.get(f"/v1/responses/{made['id']}")).json() == made
