"""Attacks of those who have no key: at HTTP's port, and at the ports beside it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

from parts.kv_events import zmtp
from tests.attack.connections import ConnectionAttack

MOST_GROWTH_BYTES: Final = 50 << 20  # of API and engine processes
_NUM_CLIENTS: Final = 100
_NUM_REQUESTS: Final = 60  # of each, for all batches that are kept
_SILENT_S: Final = 5.0

Statuses = Counter[str]


@dataclass(frozen=True, slots=True)
class StrangerAttack(ConnectionAttack):
    """An attack of a port that needs no key, or before there is one."""

    at: Literal["api", "events", "replay"] = "api"


def stranger_attacks() -> list[StrangerAttack]:
    """Every attack of this kind."""
    request = zmtp.frame(b"", is_last=False) + zmtp.frame(bytes(8))
    replays = zmtp.GREETING + zmtp.ready(b"DEALER") + request * _NUM_REQUESTS
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
            partial(_never_read, replays),
            _SILENT_S,
            "replay",
        ),
    ]


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
