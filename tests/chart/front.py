"""A Service's part of a rollout: new connections go to the pods that are ready; and its callers."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx2

from tests import loopback

PATIENCE_S = 180  # the machine may be busy
PAUSE_S = 0.2  # the clients' own share of the machine
BODY = {
    "model": "nano",
    "messages": [{"role": "user", "content": "Count to ten"}],
    "stream": True,
    "max_tokens": 100,
    "ignore_eos": True,
}


class Front:
    """Forwards connections to the ports that are ready at their start, in turn."""

    def __init__(self, ready: Callable[[], list[int]]) -> None:
        self._ready = ready
        self._turn = 0
        self._open: set[asyncio.Task[None]] = set()

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        ready = self._ready()
        if not ready:
            writer.close()
            return
        self._turn += 1
        try:
            other_reader, other_writer = await asyncio.open_connection(
                loopback.ADDRESS, ready[self._turn % len(ready)]
            )
        except OSError:
            writer.close()
            return
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(_copy(reader, other_writer), _copy(other_reader, writer))

    async def close(self) -> None:
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def front_of(ready: Callable[[], list[int]]) -> AsyncIterator[str]:
    """Gives the URL."""
    front = Front(ready)
    listener = await asyncio.start_server(front.connect, loopback.ADDRESS, 0)
    try:
        yield f"http://{loopback.IN_URL}:{listener.sockets[0].getsockname()[1]}"
    finally:
        listener.close()
        await front.close()


async def ask(url: str) -> str:
    """One request on a connection of its own; says what came of it."""
    try:
        async with (
            httpx2.AsyncClient(base_url=url, timeout=PATIENCE_S) as client,
            client.stream("POST", "/v1/chat/completions", json=BODY) as answer,
        ):
            lines = [line async for line in answer.aiter_lines() if line]
    except httpx2.TransportError as error:
        return f"lost: {error!r}"
    if answer.status_code != 200:
        return f"{answer.status_code}: {lines[:1]}"
    return "answered" if lines[-1] == "data: [DONE]" else f"cut: {lines[-1]}"


@asynccontextmanager
async def load(url: str, num_clients: int) -> AsyncIterator[Counter[str]]:
    """Clients that ask one request after the other; counts what came of them."""
    outcomes: Counter[str] = Counter()
    is_over = asyncio.Event()

    async def client() -> None:
        while not is_over.is_set():
            outcomes[await ask(url)] += 1
            await asyncio.sleep(PAUSE_S)

    async with asyncio.TaskGroup() as clients:
        for _ in range(num_clients):
            clients.create_task(client())
        yield outcomes
        is_over.set()
