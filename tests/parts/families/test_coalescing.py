"""Steps that wait for a client ride in one chunk; the first token waits for nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from engines.base import EngineRequest, FinishReason, OnEntered, TokenEvent, ignore
from engines.process.stream import Stream, Unread
from service.run.server import create_app
from service.runtime import Runtime
from tests.fake.engine import FakeEngine
from tests.fake.sequence import FakeOptions

Fixture = Callable[..., Any]

ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
    "/v1/responses": {"input": "Hi"},
    "/v1/messages": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9999},
    "/v1/completions": {"prompt": "Hi"},
}
WORDS = "word " * 500
SCRIPT = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>"


class Pushed(FakeEngine):
    """Gives what the test pushes, through the buffer that the engine's client has."""

    def __init__(self) -> None:
        super().__init__(FakeOptions(script=(1,)))
        self.streams: list[Stream] = []

    async def generate(
        self, request: EngineRequest, on_entered: OnEntered = ignore
    ) -> AsyncGenerator[TokenEvent, None]:
        stream = Stream(Unread(), print, print)
        self.streams.append(stream)
        while True:
            event = await stream.next()
            yield event
            if event.finish_reason is not None:
                return


class Client:
    """Takes bodies only while it reads."""

    def __init__(self, runtime: Runtime, path: str, body: dict[str, Any]) -> None:
        self.bodies: list[bytes] = []
        self.reads = asyncio.Event()
        self._body: bytes | None = json.dumps(body | {"model": "gpt-oss-20b"}).encode()
        self._came = asyncio.Event()
        headers = [(b"content-type", b"application/json")]
        scope: dict[str, Any] = {
            "type": "http",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
        }
        scope |= {"query_string": b"", "headers": headers, "app": None}
        app = create_app(runtime)
        self.task = asyncio.create_task(app(scope, self._receive, self._send))

    async def next(self) -> bytes:
        """The first body that is not empty, since the last call."""
        while not any(self.bodies):
            self._came.clear()
            await asyncio.wait_for(self._came.wait(), 60)
        return b"".join(self.bodies)

    async def _receive(self) -> dict[str, Any]:
        body, self._body = self._body, None
        if body is not None:
            return {"type": "http.request", "body": body, "more_body": False}
        await asyncio.Event().wait()
        raise AssertionError

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.body":
            await self.reads.wait()
            self.bodies.append(message["body"])
            self._came.set()


@pytest.fixture
async def engine() -> Any:
    engine = Pushed()
    await engine.start()
    yield engine
    await engine.stop()


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so():
            await asyncio.sleep(0.001)


async def settled() -> None:
    """Let every task run until nothing more can happen."""
    for _ in range(200):
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("path", "num_choices"),
    [*((path, 1) for path in ROUTES), ("/v1/chat/completions", 3), ("/v1/completions", 3)],
)
async def test_steps_that_wait_for_a_reader_come_together(
    make_runtime: Fixture, harmony_ids: Fixture, engine: Pushed, path: str, num_choices: int
) -> None:
    body = ROUTES[path] | {"stream": True} | ({"n": num_choices} if num_choices > 1 else {})
    client = Client(make_runtime(engine=engine), path, body)
    await until(lambda: len(engine.streams) == num_choices)
    client.reads.set()
    head, words = harmony_ids(SCRIPT), harmony_ids(WORDS)
    for stream in engine.streams:
        for token_id in (*head, words[0]):
            stream.push(TokenEvent((token_id,)))
    assert b"data: " in await client.next()
    await settled()
    client.reads.clear()
    num_before = len(client.bodies)
    for token_id in words[1:]:
        for stream in engine.streams:
            stream.push(TokenEvent((token_id,)))
        await asyncio.sleep(0)
    for stream in engine.streams:
        stream.push(TokenEvent(harmony_ids("<|return|>"), finish_reason=FinishReason.STOP))
    await settled()
    client.reads.set()
    await asyncio.wait_for(client.task, 60)
    num_chunks = len(client.bodies) - num_before
    assert num_chunks < 12 * num_choices, num_chunks
    text = b"".join(client.bodies).decode()
    assert text.count("word") >= 500 * num_choices


async def test_the_first_token_waits_for_no_other(
    make_runtime: Fixture, harmony_ids: Fixture, engine: Pushed
) -> None:
    path = "/v1/chat/completions"
    client = Client(make_runtime(engine=engine), path, ROUTES[path] | {"stream": True})
    client.reads.set()
    await until(lambda: len(engine.streams) == 1)
    for token_id in harmony_ids("<|channel|>final<|message|>Hi"):
        engine.streams[0].push(TokenEvent((token_id,)))
    await settled()
    assert b'"content":"Hi"' in b"".join(client.bodies)
    client.task.cancel()
    await asyncio.wait((client.task,))
