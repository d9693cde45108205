"""Responses over WebSocket: a real server in this loop, and the client of `websockets`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import uvicorn
from websockets.asyncio.client import ClientConnection, connect

from service.http.protocol import bounded_protocol
from service.http.streaming import expose_server_send
from service.run.server import create_app
from service.runtime import Runtime
from tests.parts.responses.conftest import hello, make_runtime, named
from tests.service.conftest import harmony_ids

__all__ = ["harmony_ids", "hello", "make_runtime", "named"]

ENDS = ("response.completed", "response.incomplete", "response.failed", "error")


class Client:
    """One WebSocket of a client."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    async def send(self, **event: Any) -> None:
        await self.connection.send(json.dumps(event))

    async def create(self, **changes: Any) -> None:
        """Send a minimal `response.create`, changed as asked."""
        body = {"type": "response.create", "model": "gpt-oss-20b", "input": "Hi", "store": False}
        await self.send(**(body | changes))

    async def event(self) -> Any:
        async with asyncio.timeout(60):
            return json.loads(await self.connection.recv())

    async def turn(self, **changes: Any) -> list[Any]:
        """The events of one turn, to its end."""
        await self.create(**changes)
        return await self.rest()

    async def rest(self) -> list[Any]:
        events = [await self.event()]
        while events[-1]["type"] not in ENDS:
            events.append(await self.event())
        return events

    async def close_code(self) -> int | None:
        async with asyncio.timeout(60):
            await self.connection.wait_closed()
        return self.connection.close_code


class Server:
    """A server in this loop; `open` connects a client to it."""

    def __init__(self, runtime: Runtime, url: str) -> None:
        self.runtime = runtime
        self.url = url
        self.clients: list[Client] = []

    async def open(self, **headers: str) -> Client:
        """Connect a client, with headers named as in Python."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        connection = await connect(
            f"{self.url}/v1/responses", additional_headers=given, max_size=None
        )
        self.clients.append(Client(connection))
        return self.clients[-1]


Serve = Callable[[Runtime], Awaitable[Server]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Start the application of a runtime behind the protocol that serves users."""
    started: list[tuple[uvicorn.Server, asyncio.Task[None], Server]] = []

    async def start(runtime: Runtime) -> Server:
        await runtime.engine.start()
        app = create_app(runtime)
        limits = runtime.limits
        config = uvicorn.Config(
            expose_server_send(app),
            port=0,
            ws="none",
            log_config=None,
            lifespan="off",
            http=bounded_protocol(
                limits.max_connections, paths=app.paths, max_message_bytes=limits.max_body_bytes
            ),
        )
        server = uvicorn.Server(config)
        task = asyncio.create_task(server.serve())
        async with asyncio.timeout(60):
            while not server.started:
                await asyncio.sleep(0.005)
        port = server.servers[0].sockets[0].getsockname()[1]
        started.append((server, task, Server(runtime, f"ws://127.0.0.1:{port}")))
        return started[-1][2]

    yield start
    for server, task, served in started:
        for client in served.clients:
            client.connection.transport.abort()
            await client.connection.wait_closed()
        server.should_exit = True
        await task
        await served.runtime.engine.stop()


@pytest.fixture
async def client(serve: Serve, make_runtime: Any, hello: str) -> Client:
    """A client of a server whose model always says hello."""
    server = await serve(make_runtime(hello))
    return await server.open()
