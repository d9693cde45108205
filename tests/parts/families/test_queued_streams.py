"""When the head of a stream is sent: not while its request may still be refused for its wait."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest

from engines.base import EngineRequest
from engines.queueing.admission import QueuedEngine
from service.admission.gate import Bounds, Gate
from service.answer import generation
from service.harmony.vocabulary import encode_text
from service.run.server import create_app
from service.runtime import Runtime
from tests.engines.queueing.recorder import Recorder, engine_of, opener, request

Fixture = Callable[..., Any]

ENDLESS = "<|channel|>final<|message|>" + "word " * 50
MESSAGES = [{"role": "user", "content": "Hi"}]
BEGUN = encode_text("It ")
CHAT = "/v1/chat/completions"
ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, {"messages": MESSAGES}),
    "continued": (CHAT, {"messages": MESSAGES, "continue_token_ids": list(BEGUN)}),
    "completions": ("/v1/completions", {"prompt": "Hi"}),
    "echo": ("/v1/completions", {"prompt": "Hi", "echo": True}),
    "messages": ("/v1/messages", {"messages": MESSAGES, "max_tokens": 9}),
    "responses": ("/v1/responses", {"input": "Hi"}),
}


@asynccontextmanager
async def full(client: httpx2.AsyncClient, runtime: Runtime) -> AsyncIterator[None]:
    """Inside the block an answer without an end has the engine's only place."""
    body = {"model": "gpt-oss-20b", "messages": MESSAGES, "min_tokens": 90_000}
    running = asyncio.create_task(client.post(CHAT, json=body))
    async with asyncio.timeout(60):
        while (await runtime.engine.stats()).num_running < 1:
            await asyncio.sleep(0.01)
    yield
    running.cancel()
    await asyncio.wait((running,))


@pytest.mark.parametrize("name", ASKED)
async def test_a_stream_that_waits_too_long_is_refused_before_its_head(
    make_runtime: Fixture, make_client: Fixture, name: str
) -> None:
    """After 200 and a keep-alive, no client tries again: 74 of 300 streams ended so."""
    gate = Gate(Bounds(max_wait_s=0.4))
    runtime = make_runtime(ENDLESS, gate=gate, max_num_seqs=1, step_s=0.01, sse_keepalive_s=0.02)
    client = await make_client(runtime)
    path, fields = ASKED[name]
    async with full(client, runtime):
        answer = await client.post(path, json={"model": "gpt-oss-20b", "stream": True, **fields})
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.headers["content-type"] == "application/json"
    assert "overloaded" in answer.text


class Exchange:
    """One stream whose messages are looked at as they come."""

    def __init__(self, runtime: Runtime) -> None:
        self.sent: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
        self._body: bytes | None = json.dumps(
            {"model": "gpt-oss-20b", "messages": MESSAGES, "stream": True}
        ).encode()
        self._left = asyncio.Event()
        headers = [(b"content-type", b"application/json")]
        scope: dict[str, Any] = {
            "type": "http",
            "method": "POST",
            "path": CHAT,
            "raw_path": CHAT.encode(),
            "query_string": b"",
            "headers": headers,
            "app": None,
        }
        self.task = asyncio.create_task(create_app(runtime)(scope, self._receive, self.sent.put))

    async def next(self) -> MutableMapping[str, Any]:
        return await asyncio.wait_for(self.sent.get(), 60)

    async def leave(self) -> None:
        self._left.set()
        await asyncio.wait_for(self.task, 60)

    async def _receive(self) -> dict[str, Any]:
        body, self._body = self._body, None
        if body is not None:
            return {"type": "http.request", "body": body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}


async def _until_begun(runner: Recorder, number: int) -> str:
    async with asyncio.timeout(60):
        while len(runner.begun) < number:
            await asyncio.sleep(0.001)
    return runner.begun[-1]


def _runtime(make_runtime: Fixture, engine: QueuedEngine[EngineRequest]) -> Runtime:
    runtime: Runtime = make_runtime(
        engine=engine, gate=Gate(Bounds(max_wait_s=3600.0)), sse_keepalive_s=0.01
    )
    return runtime


async def test_a_long_prompt_has_its_head_and_keep_alives_once_the_engine_computes_it(
    make_runtime: Fixture,
) -> None:
    runner = Recorder()
    exchange = Exchange(_runtime(make_runtime, await engine_of(runner)))
    await _until_begun(runner, 1)
    head = await exchange.next()
    assert (head["type"], head["status"]) == ("http.response.start", 200)
    assert b'"role":"assistant"' in (await exchange.next())["body"]
    assert [(await exchange.next())["body"] for _ in range(3)] == [b": keep-alive\n\n"] * 3
    await exchange.leave()


async def test_nothing_is_sent_while_it_waits_and_all_once_the_engine_takes_it(
    make_runtime: Fixture,
) -> None:
    runner = Recorder(max_num_seqs=1)
    engine = await engine_of(runner)
    open_, _ = opener(engine)
    await open_(request("before"))
    exchange = Exchange(_runtime(make_runtime, engine))
    async with asyncio.timeout(60):
        while (await engine.stats()).num_waiting < 2:  # one of them the recorder's own
            await asyncio.sleep(0.001)
    await asyncio.sleep(0.1)  # ten keep-alives
    assert exchange.sent.empty()
    runner.give("before", is_last=True)
    await _until_begun(runner, 2)
    assert (await exchange.next())["status"] == 200
    assert b'"role":"assistant"' in (await exchange.next())["body"]
    assert (await exchange.next())["body"] == b": keep-alive\n\n"
    await exchange.leave()


async def test_an_engine_that_says_nothing_has_the_limit_of_the_queue_and_no_longer(
    make_runtime: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while it is restarted: the stream is kept open by keep-alives from then on."""
    monkeypatch.setattr(generation, "_REFUSAL_S", -3600.0)
    runner = Recorder()
    runner.may_prepare.clear()
    exchange = Exchange(_runtime(make_runtime, await engine_of(runner)))
    assert (await exchange.next())["status"] == 200
    assert runner.begun == []
    await exchange.leave()
