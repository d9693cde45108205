"""The responses routes around a scripted engine, in process and behind a real server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx2
import pytest
import uvicorn

from engines.base import EngineRequest
from service.harmony.vocabulary import decode_marked
from service.run.server import create_app
from service.runtime import Runtime
from tests.fake.engine import FakeEngine
from tests.fake.sequence import FakeOptions
from tests.parts.responses.replicas import open_database, open_replica, replicas
from tests.parts.responses.typed_tools import FINAL
from tests.service.admission.conftest import named
from tests.service.conftest import (
    harmony_ids,
    make_client,
    make_runtime,
    openai_sdk,
    redis_url,
)

__all__ = [
    "harmony_ids",
    "make_client",
    "make_runtime",
    "named",
    "open_database",
    "open_replica",
    "openai_sdk",
    "redis_url",
    "replicas",
]

PATH = "/v1/responses"
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": None}
THOUGHT = '<|channel|>analysis<|message|>A short "thought".<|end|><|start|>assistant'
HELLO = THOUGHT + "<|channel|>final<|message|>Grüße, 👩‍🚀!\n<|return|>"
CALL = THOUGHT + (
    "<|channel|>commentary<|message|>Looking it up.<|end|><|start|>assistant"
    '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": "é", "b": [1]}<|call|>'
)

Body = Callable[..., dict[str, Any]]
Serve = Callable[[Runtime], Awaitable[Any]]  # an openai.AsyncOpenAI


@pytest.fixture
def hello() -> str:
    """An answer with reasoning and a final message."""
    return HELLO


@pytest.fixture
def call() -> str:
    """An answer with reasoning, a preamble and a call of `f`."""
    return CALL


@pytest.fixture
def tool() -> dict[str, Any]:
    return dict(TOOL)


@pytest.fixture
def body() -> Body:
    """A minimal valid request, changed as asked."""

    def make(**changes: Any) -> dict[str, Any]:
        return {"model": "gpt-oss-20b", "input": "Hello!"} | changes

    return make


@pytest.fixture
def typed_events() -> Callable[[str], list[Any]]:
    """The events of an SSE text; each one's name is its data's type, and [DONE] ends them."""

    def parse(text: str) -> list[Any]:
        blocks = [block for block in text.split("\n\n") if block and block[0] != ":"]
        assert blocks[-1] == "data: [DONE]"
        events = []
        for block in blocks[:-1]:
            name, data = block.split("\n")
            events.append(json.loads(data.removeprefix("data: ")))
            assert name == f"event: {events[-1]['type']}"
        return events

    return parse


@pytest.fixture
async def serve(openai_sdk: Any) -> AsyncIterator[Serve]:
    """A real HTTP server in this loop, and the real SDK as its client."""
    started: list[tuple[uvicorn.Server, asyncio.Task[None], Runtime, Any]] = []

    async def start(runtime: Runtime) -> Any:
        await runtime.engine.start()
        config = uvicorn.Config(create_app(runtime), port=0, log_config=None, lifespan="off")
        server = uvicorn.Server(config)
        task = asyncio.create_task(server.serve())
        async with asyncio.timeout(60):
            while not server.started:
                await asyncio.sleep(0.005)
        port = server.servers[0].sockets[0].getsockname()[1]
        url = f"http://127.0.0.1:{port}/v1"
        client = openai_sdk.AsyncOpenAI(base_url=url, api_key="none", max_retries=0)
        started.append((server, task, runtime, client))
        return client

    yield start
    for server, task, runtime, client in started:
        await client.close()
        server.should_exit = True
        await task
        await runtime.engine.stop()


@pytest.fixture
def post(make_runtime: Any, make_client: Any, body: Body) -> Callable[..., Any]:
    """Post to a service whose model writes `script`."""

    async def send(script: str, **changes: Any) -> httpx2.Response:
        client = await make_client(make_runtime(script))
        response: httpx2.Response = await client.post(PATH, json=body(**changes))
        return response

    return send


@pytest.fixture
async def run(make_client: Any, make_runtime: Any, harmony_ids: Any) -> Callable[..., Any]:
    """Post a body whose answer is this text; give the answer and what the engine was asked."""
    seen: list[EngineRequest] = []
    texts: list[str] = []

    def script(request: EngineRequest) -> tuple[int, ...]:
        seen.append(request)
        ids: tuple[int, ...] = harmony_ids(texts[-1])
        return ids

    client = await make_client(make_runtime(engine=FakeEngine(FakeOptions(), script)))

    async def post(text: str = FINAL, **body: Any) -> tuple[Any, str]:
        texts.append(text)
        body = {"model": "gpt-oss-20b", "input": "Hi"} | body
        response = await client.post(PATH, json=body)
        assert response.status_code == 200, response.text
        return response, decode_marked(seen[-1].prompt_token_ids)

    return post
