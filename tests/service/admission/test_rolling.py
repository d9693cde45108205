"""Two servers behind a TCP balancer are replaced one by one under load, and no answer is lost."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests import loopback

pytestmark = pytest.mark.rolling

PROGRAM = Path(__file__).parents[1] / "serve_scripted.py"
PATH = "/v1/chat/completions"
NUM_CLIENTS = 12
PATIENCE_S = 180  # the machine may be busy


class Server:
    """`harmonium serve` as a process; an answer takes about a second."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._log: list[str] = []
        self._reading: asyncio.Task[None] | None = None
        self.port = 0

    @classmethod
    async def start(cls, options: dict[str, Any]) -> Server:
        command = [sys.executable, str(PROGRAM), json.dumps(options), "serve", "--server-port=0"]
        process = await asyncio.create_subprocess_exec(
            *command, stderr=asyncio.subprocess.PIPE, env={**os.environ, "NIM_DRAIN_GRACE_S": "20"}
        )
        server = cls(process)
        assert process.stderr is not None
        async for line in process.stderr:
            server._log.append(line.decode())
            if "Ready after" in server._log[-1]:
                server.port = int(server._log[-1].strip().rpartition(":")[2])
                break
        assert server.port, "".join(server._log)
        server._reading = asyncio.create_task(server._read())
        return server

    async def _read(self) -> None:
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            self._log.append(line.decode())

    async def replace(self) -> int:
        """Send SIGTERM, wait for its end; gives the exit code."""
        self._process.send_signal(signal.SIGTERM)
        return await self.end()

    async def end(self) -> int:
        assert self._reading is not None
        async with asyncio.timeout(PATIENCE_S):
            code = await self._process.wait()
            await self._reading
        return code

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
            await self.end()


class Balancer:
    """Gives each new connection to the next server that says it is ready."""

    def __init__(self) -> None:
        self.ports: list[int] = []
        self._ready: list[int] = []
        self._turn = 0
        self._connections: set[asyncio.Task[None]] = set()

    async def watch(self) -> None:
        """Ask for readiness as a kubelet does, only more often."""
        while True:
            ports = self.ports  # they may be others by the time of the answers
            answers = await asyncio.gather(*map(self._is_ready, ports))
            self._ready = [p for p, is_ready in zip(ports, answers, strict=True) if is_ready]
            await asyncio.sleep(0.02)

    async def _is_ready(self, port: int) -> bool:
        try:
            reader, writer = await asyncio.open_connection(loopback.ADDRESS, port)
        except OSError:
            return False
        try:
            request = (
                "GET /v1/health/ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            )
            writer.write(request.encode())
            status = await reader.readline()
        except OSError:
            return False
        finally:
            writer.close()
        return b" 200 " in status

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            while not self._ready:
                await asyncio.sleep(0.01)
            self._turn += 1
            port = self._ready[self._turn % len(self._ready)]
            server_reader, server_writer = await asyncio.open_connection(loopback.ADDRESS, port)
            await asyncio.gather(_copy(reader, server_writer), _copy(server_reader, writer))
        except OSError:
            writer.close()
        finally:
            self._connections.discard(task)

    async def close(self) -> None:
        for task in self._connections:
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


async def ask(client: httpx2.AsyncClient, body: dict[str, Any]) -> str:
    """Ask once; says what came of it."""
    lines: list[str] = []
    status = 0
    try:
        async with client.stream("POST", PATH, json=body) as response:
            status = response.status_code
            lines = [line async for line in response.aiter_lines() if line]
    except httpx2.TransportError:
        return "lost" if status == 200 else "not taken"
    if status == 503:
        assert json.loads(lines[0])["error"]["code"] == "not_ready"
        assert response.headers["retry-after"] == "1"
        assert response.headers["connection"] == "close"
        return "refused"
    assert status == 200
    is_whole = '"finish_reason":"stop"' in lines[-2] and lines[-1] == "data: [DONE]"
    return "answered" if is_whole else "lost"


@pytest.fixture
async def balancer() -> AsyncIterator[tuple[Balancer, str]]:
    balancer = Balancer()
    watching = asyncio.create_task(balancer.watch())
    listener = await asyncio.start_server(balancer.connect, loopback.ADDRESS, 0)
    yield balancer, f"http://{loopback.IN_URL}:{listener.sockets[0].getsockname()[1]}"
    assert not watching.done(), watching
    watching.cancel()
    listener.close()
    await balancer.close()


async def test_a_rolling_restart_under_load_loses_nothing(
    balancer: tuple[Balancer, str], harmony_ids: Callable[[str], tuple[int, ...]]
) -> None:
    front, url = balancer
    script = harmony_ids("<|channel|>final<|message|>" + "word " * 60 + "<|return|>")
    options = {"script": script, "step_s": 0.015}
    outcomes: Counter[str] = Counter()
    is_over = asyncio.Event()
    body = {"model": "nano", "messages": [{"role": "user", "content": "Hi"}], "stream": True}

    async def client() -> None:
        async with httpx2.AsyncClient(base_url=url, timeout=PATIENCE_S) as session:
            while not is_over.is_set():
                outcome = await ask(session, body)
                outcomes[outcome] += 1
                if outcome != "answered":
                    await asyncio.sleep(0.05)

    servers = [await Server.start(options) for _ in range(2)]
    try:
        front.ports = [server.port for server in servers]
        async with asyncio.TaskGroup() as clients:
            for _ in range(NUM_CLIENTS):
                clients.create_task(client())
            for old in list(servers):
                new = await Server.start(options)
                servers.append(new)
                front.ports = [*front.ports, new.port]
                assert await old.replace() == 0
                front.ports = [port for port in front.ports if port != old.port]
            before = outcomes["answered"]
            async with asyncio.timeout(PATIENCE_S):
                while outcomes["answered"] < before + NUM_CLIENTS:
                    await asyncio.sleep(0.05)
            is_over.set()
    finally:
        for server in servers:
            await server.kill()
    assert outcomes["lost"] == 0
    assert outcomes["answered"] > 4 * NUM_CLIENTS
    # Nobody was left without a word but those whose connection was closed as they began to send.
    assert outcomes["not taken"] <= NUM_CLIENTS
