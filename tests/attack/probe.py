"""Who suffers from an attack: the liveness probe, and another caller who reads a stream.

`python -m tests.attack.probe PORT KEY` looks until its stdin ends. For each line there
it writes, as one line of JSON, the Window since the last. It is a process of its own, so that
the attacker's work is not taken for the server's.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict, dataclass, field
from typing import Final

POLL_S: Final = 0.02
_LIVE: Final = b"GET /v1/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
_BODY: Final = json.dumps(
    {
        "model": "nano",
        "messages": [{"role": "user", "content": "Tell me a long story."}],
        "stream": True,
        "max_completion_tokens": 200,
    }
).encode()


@dataclass(slots=True)
class Window:
    """What was seen in one stretch of time."""

    live_gap_s: float = 0.0  # the longest wait for an answer of the probe
    token_gaps_s: list[float] = field(default_factory=list)
    num_refused: int = 0  # requests of the other caller that were not answered with 200
    num_broken: int = 0  # streams that did not end as they should
    num_lost: int = 0  # connections of the probe that were lost


class Prober:
    """Looks at one server."""

    def __init__(self, port: int, key: str) -> None:
        self._port = port
        self._key = key
        self._window = Window()
        self._polled_at: float | None = None  # while no answer came
        self._token_at: float | None = None  # the last one's, while a stream goes on

    def take(self) -> Window:
        """All since the last call; a wait that goes on counts as far as it has come."""
        now = asyncio.get_running_loop().time()
        taken, self._window = self._window, Window()
        if self._polled_at is not None:
            taken.live_gap_s = max(taken.live_gap_s, now - self._polled_at)
        if self._token_at is not None and now - self._token_at > POLL_S:
            taken.token_gaps_s.append(now - self._token_at)
        return taken

    async def poll(self) -> None:
        """Ask for liveness for ever."""
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
                while True:
                    await self._poll_once(reader, writer)
                    await asyncio.sleep(POLL_S)
            except (OSError, asyncio.IncompleteReadError):
                self._window.num_lost += 1
                await asyncio.sleep(POLL_S)

    async def _poll_once(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        self._polled_at = self._polled_at or loop.time()
        writer.write(_LIVE)
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(_length(head))
        gap_s, self._polled_at = loop.time() - self._polled_at, None
        self._window.live_gap_s = max(self._window.live_gap_s, gap_s)

    async def stream(self) -> None:
        """Read one stream after the other for ever."""
        while True:
            try:
                await self._stream_once()
            except (OSError, asyncio.IncompleteReadError):
                self._window.num_broken += 1
                await asyncio.sleep(0.1)
            self._token_at = None

    async def _stream_once(self) -> None:
        loop = asyncio.get_running_loop()
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nAuthorization: Bearer {self._key}\r\n"
            f"Content-Length: {len(_BODY)}\r\n\r\n"
        )
        try:
            writer.write(head.encode() + _BODY)
            if b" 200 " not in (await reader.readuntil(b"\r\n\r\n"))[:16]:
                self._window.num_refused += 1
                await asyncio.sleep(0.1)
                return
            last = b""
            while data := await reader.read(65536):
                now = loop.time()
                if self._token_at is not None:
                    self._window.token_gaps_s.append(now - self._token_at)
                self._token_at, last = now, data
            self._window.num_broken += b"[DONE]" not in last or b'"error"' in last
        finally:
            writer.close()


def _length(head: bytes) -> int:
    name = b"content-length: "
    return int(head[head.index(name) + len(name) :].split(b"\r\n", 1)[0])


async def _look(port: int, key: str) -> None:
    prober = Prober(port, key)
    looking = [asyncio.create_task(prober.poll()), asyncio.create_task(prober.stream())]
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, sys.stdin.readline):
        print(json.dumps(asdict(prober.take())), flush=True)
    for task in looking:
        task.cancel()


if __name__ == "__main__":
    asyncio.run(_look(int(sys.argv[1]), sys.argv[2]))
