"""One streamed request on a connection of its own, as cheap for the client as it can be."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

HEAD = (
    "POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
    "Connection: close\r\nAuthorization: Bearer {key}\r\nContent-Length: {length}\r\n\r\n"
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one request; times are the running loop's."""

    asked_at: float
    first_at: float  # when the first byte of the body came
    ended_at: float
    status: int  # 0: the connection broke
    num_tokens: int  # events with text
    is_complete: bool

    @property
    def ttft_s(self) -> float:
        return self.first_at - self.asked_at


async def ask(port: int, body: bytes, key: str) -> Answer:
    """Send it and read all of the answer."""
    loop = asyncio.get_running_loop()
    asked_at = first_at = loop.time()
    received = b""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEAD.format(length=len(body), key=key).encode() + body)
        received = await reader.readuntil(b"\r\n\r\n")
        received += await reader.read(65536)
        first_at = loop.time()
        received += await reader.read()
        writer.close()
    except (ConnectionError, asyncio.IncompleteReadError):
        pass  # it shows in the answer
    return Answer(
        asked_at,
        first_at,
        loop.time(),
        int(received[9:12] or 0),
        received.count(b'"content":"') - 1,  # the first one has the role
        b"data: [DONE]" in received and b'"error"' not in received,
    )
