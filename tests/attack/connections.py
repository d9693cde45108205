"""Attacks that are no body: chunks of one byte, pipelined requests, many prompts at once, answers
that nobody reads."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from tests.attack.bodies import CHAT, COMPLETIONS
from tests.attack.server import ATTACKER

NUM_READERS: Final = 150
_VERSION: Final = b"GET /v1/version HTTP/1.1\r\nHost: localhost\r\n\r\n"
_PAUSE_S: Final = 0.02  # between two connections: a burst is another matter
_SLOW_BYTES: Final = 1000  # a second: twice what a client must read
_READERS_S: Final = 20.0  # long enough to reach every bound
_NUM_TOGETHER: Final = 32

Statuses = Counter[str]


@dataclass(frozen=True, slots=True)
class ConnectionAttack:
    """An attack of several connections, each of which is sent to for some seconds."""

    name: str
    path: str
    num_connections: int
    attack: Callable[
        [int, float, Statuses], Coroutine[Any, Any, None]
    ]  # port, seconds, answers by status
    least_s: float = 0.0

    async def run(self, port: int, seconds: float, statuses: Statuses) -> float:
        """Attack on all connections; gives 0.0: no answer is waited for."""
        seconds = max(seconds, self.least_s)
        attacking: list[asyncio.Task[None]] = []
        for _ in range(self.num_connections):
            attacking.append(asyncio.create_task(self.attack(port, seconds, statuses)))
            await asyncio.sleep(_PAUSE_S)
        await asyncio.gather(*attacking)
        return 0.0


def connection_attacks() -> list[ConnectionAttack]:
    """Every attack of this kind."""
    chunks = [
        ConnectionAttack(
            f"chunks of {size} bytes, {'a' if key else 'no'} key, {number} connections",
            CHAT,
            number,
            partial(_send_chunks, size, key),
        )
        for size, key, number in (
            (1, None, 1),
            (1, None, 20),
            (1, ATTACKER, 1),
            (1, ATTACKER, 20),
            (8, None, 1),
            (64, None, 1),
            (65536, ATTACKER, 1),
        )
    ]
    return [
        *chunks,
        ConnectionAttack("4,000 pipelined requests", "/v1/version", 8, _pipeline),
        ConnectionAttack("metrics without a key", "/metrics", 8, _read_metrics),
        ConnectionAttack(f"{_NUM_TOGETHER} prompts of 9 kB at once", COMPLETIONS, 1, _together),
        *(
            ConnectionAttack(
                name, path, NUM_READERS, partial(_never_read, path, body, 0), _READERS_S
            )
            for name, path, body in (
                ("streams that nobody reads", CHAT, {"messages": _HELLO}),
                (
                    "unread streams, top_logprobs 20",
                    CHAT,
                    {"messages": _HELLO, "logprobs": True, "top_logprobs": 20},
                ),
                ("unread streams, logprobs 5", COMPLETIONS, {"prompt": "Hello", "logprobs": 5}),
            )
        ),
        ConnectionAttack(
            "streams that are read slowly, logprobs 5",
            COMPLETIONS,
            NUM_READERS,
            partial(_never_read, COMPLETIONS, {"prompt": "Hello", "logprobs": 5}, _SLOW_BYTES),
            _READERS_S,
        ),
    ]


_HELLO: Final = [{"role": "user", "content": "Hello"}]


async def _send_chunks(
    size: int, key: str | None, port: int, seconds: float, statuses: Statuses
) -> None:
    """Send a body that never ends; a connection that is closed is opened again."""
    authorization = f"Authorization: Bearer {key}\r\n" if key else ""
    head = (
        f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"{authorization}Transfer-Encoding: chunked\r\n\r\n"
    ).encode()
    chunks = (b"%x\r\n" % size + b" " * size + b"\r\n") * max(1, 65536 // size)
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while loop.time() < until:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout_at(until):
                writer.write(head)
                while not reader.at_eof():
                    writer.write(chunks)
                    await writer.drain()
        # An answer may be lost when the server closes before all was read: that is no fault.
        answer = await _answer_so_far(reader)
        statuses[answer or "closed"] += 1
        writer.transport.abort()


async def _answer_so_far(reader: asyncio.StreamReader) -> str:
    with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
        async with asyncio.timeout(0.1):
            return (await reader.readuntil(b"\r\n"))[9:12].decode()
    return ""


async def _pipeline(port: int, seconds: float, statuses: Statuses) -> None:
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while loop.time() < until:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(_VERSION * 4000)
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout_at(until):
                while data := await reader.read(1 << 16):
                    statuses["200"] += data.count(b"HTTP/1.1 200")
        writer.transport.abort()


async def _read_metrics(port: int, seconds: float, statuses: Statuses) -> None:
    request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while loop.time() < until:
        statuses[await _status(port, request)] += 1


async def _together(port: int, seconds: float, statuses: Statuses) -> None:
    """Send many prompts at the same time, again when all are answered; each alone is short."""
    data = json.dumps({"model": "nano", "prompt": "word " * 1_800, "max_tokens": 4}).encode()
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while loop.time() < until:
        asking = (status_of(port, COMPLETIONS, data) for _ in range(_NUM_TOGETHER))
        statuses.update(await asyncio.gather(*asking))


async def status_of(port: int, path: str, body: bytes) -> str:
    """The status of the attacker's request."""
    return await _status(port, _head(path, len(body)) + body)


async def _status(port: int, request: bytes) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await reader.readuntil(b"\r\n")
    writer.transport.abort()
    return answer[9:12].decode()


def _head(path: str, num_bytes: int) -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {ATTACKER}\r\nContent-Length: {num_bytes}\r\n\r\n"
    ).encode()


async def _never_read(
    path: str, body: dict[str, Any], bytes_s: int, port: int, seconds: float, statuses: Statuses
) -> None:
    """Ask for a long stream and read its status, then only so many bytes a second."""
    loop = asyncio.get_running_loop()
    whole = {"model": "nano", "stream": True, "max_tokens": 100_000, **body}
    data = json.dumps(whole).encode()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        await loop.sock_connect(client, ("127.0.0.1", port))
        await loop.sock_sendall(client, _head(path, len(data)) + data)
        first = await loop.sock_recv(client, 12)
        statuses[first[9:12].decode() or "closed"] += 1
        for _ in range(round(seconds)):
            await asyncio.sleep(1)
            if bytes_s and not await loop.sock_recv(client, bytes_s):
                statuses["cut"] += 1
                return
