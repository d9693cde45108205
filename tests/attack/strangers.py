"""Attacks of those who have no key: at HTTP's port, and at the ports beside it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

import zmq

from parts.kv_events import zmtp
from tests.attack.bodies import COMPLETIONS
from tests.attack.connections import ConnectionAttack, status_of

MOST_GROWTH_BYTES: Final = 50 << 20  # of API and engine processes
_NUM_CLIENTS: Final = 100
_NUM_REQUESTS: Final = 60  # of each, for all batches that are kept
_SILENT_S: Final = 5.0
_REPLAYED_S: Final = 10.0  # a library that copies what it sends takes so long
_NUM_PROMPTS: Final = 6
_NUM_WORDS: Final = 400

Statuses = Counter[str]


@dataclass(frozen=True, slots=True)
class StrangerAttack(ConnectionAttack):
    """An attack of a port that needs no key, or before there is one."""

    at: Literal["api", "events", "replay"] = "api"


def stranger_attacks() -> list[StrangerAttack]:
    """Every attack of this kind."""
    subscription = zmtp.GREETING + zmtp.ready(b"SUB") + zmtp.frame(b"\1")
    flood = subscription + zmtp.frame(b"?") * 100_000
    silent, again = partial(_never_read, b""), partial(_again, bytes(64))
    return [
        StrangerAttack("heads that are no HTTP", "/", 4, partial(_again, b"GET\r\n\r\n")),
        StrangerAttack("no ZMTP", "events", 4, again, at="events"),
        StrangerAttack("silent clients", "events", _NUM_CLIENTS, silent, _SILENT_S, "events"),
        StrangerAttack(
            "subscribers that never read",
            "events",
            _NUM_CLIENTS,
            partial(_never_read, subscription),
            _SILENT_S,
            "events",
        ),
        StrangerAttack("messages of one byte", "events", 4, partial(_again, flood), at="events"),
        StrangerAttack(
            "replays that nobody reads",
            "replay",
            _NUM_CLIENTS,
            _never_replayed,
            _REPLAYED_S,
            "replay",
        ),
    ]


async def fill_cache(port: int) -> None:
    """Have prompts computed, so that there are events to replay."""
    for number in range(_NUM_PROMPTS):
        body = {"model": "nano", "prompt": f"{number} words " * _NUM_WORDS, "max_tokens": 1}
        status = await status_of(port, COMPLETIONS, json.dumps(body).encode())
        assert status == "200", f"a prompt was answered {status}"


async def _again(words: bytes, port: int, seconds: float, statuses: Statuses) -> None:
    """Send this, read to the end, and connect again."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while loop.time() < until:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout_at(until):
                writer.write(words)
                while await reader.read(1 << 16):
                    pass
        statuses["closed"] += 1
        writer.transport.abort()


async def _never_read(words: bytes, port: int, seconds: float, statuses: Statuses) -> None:
    """Send this, and read nothing."""
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        await loop.sock_connect(client, ("127.0.0.1", port))
        with contextlib.suppress(OSError):
            await loop.sock_sendall(client, words)
        statuses["open"] += 1
        await asyncio.sleep(seconds)


async def _never_replayed(port: int, seconds: float, statuses: Statuses) -> None:
    """Ask for all batches again and again, as routers do, and read nothing."""
    client: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
    with client:
        client.linger, client.rcvhwm, client.rcvbuf = 0, 1, 4096
        client.reconnect_ivl = 1000  # ms; the attack is what is asked for, not the connections
        client.connect(f"tcp://127.0.0.1:{port}")
        for _ in range(_NUM_REQUESTS):
            client.send_multipart([b"", bytes(8)])
        statuses["open"] += 1
        await asyncio.sleep(seconds)
