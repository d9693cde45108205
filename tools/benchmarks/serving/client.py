"""One streamed request to an OpenAI-compatible server, and when each piece of its answer came.

While a load runs only bytes and times are kept, so that the client is not what is measured; they
are parsed when the load has ended. Standard library only: this also runs where nothing else is
installed.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
import urllib.request
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, cast
from urllib.parse import urlsplit

_TIMEOUT_S: Final = 600.0  # of one answer: past every server's own limit
_REJECTED: Final = (429, 503)


@dataclass(frozen=True, slots=True)
class Server:
    """Where requests go."""

    name: str
    url: str  # up to and without /v1
    model: str
    api_key: str = ""
    extra: dict[str, Any] = field(default_factory=dict)  # fields added to every body

    @property
    def tls(self) -> ssl.SSLContext | None:
        return ssl.create_default_context() if self.url.startswith("https:") else None

    def request(self, path: str, body: bytes) -> bytes:
        """The bytes of a POST on a connection of its own."""
        parts = urlsplit(self.url)
        head = (
            f"POST {parts.path.rstrip('/')}{path} HTTP/1.1\r\nHost: {parts.netloc}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            f"Connection: close\r\nAuthorization: Bearer {self.api_key or 'none'}\r\n\r\n"
        )
        return head.encode() + body


def first_model(url: str, api_key: str) -> str:
    """The first model that the server lists; raises OSError."""
    headers = {"Authorization": f"Bearer {api_key or 'none'}"}
    request = urllib.request.Request(f"{url}/v1/models", headers=headers)
    with urllib.request.urlopen(request, timeout=30) as response:
        return str(json.load(response)["data"][0]["id"])


class Exchange(asyncio.Protocol):
    """The bytes of one answer with the time of each read.

    Times are of time.perf_counter(): uvloop's own clock has a resolution of one millisecond."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._transport: asyncio.Transport | None = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.reads: list[tuple[float, bytes]] = []
        self.asked_at = time.perf_counter()
        self.ended_at = 0.0
        self.is_cancelled = False  # by the load, on purpose

    @property
    def first_at(self) -> float | None:
        """When the first bytes came: close to the first token, known before anything is parsed."""
        return self.reads[0][0] if self.reads else None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        self._transport.write(self._request)
        self._request = b""

    def data_received(self, data: bytes) -> None:
        self.reads.append((time.perf_counter(), data))

    def connection_lost(self, exc: Exception | None) -> None:
        self.end()

    def cancel(self) -> None:
        """Close the connection: the load has seen enough of this answer."""
        self.is_cancelled = True
        if self._transport is not None:
            self._transport.abort()

    def end(self) -> None:
        if not self.ended.done():
            self.ended_at = time.perf_counter()
            self.ended.set_result(None)


async def all_ended(exchanges: Collection[Exchange]) -> None:
    """Wait for them; cancelled, it leaves them as they are."""
    if exchanges:
        await asyncio.wait([exchange.ended for exchange in exchanges])


class Connector:
    """Sends requests to one server and keeps track of those that have not ended."""

    def __init__(self, server: Server) -> None:
        self.server = server
        parts = urlsplit(server.url)
        self._host = parts.hostname or "127.0.0.1"
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = server.tls
        self.open: set[Exchange] = set()

    def start(self, path: str, body: bytes) -> Exchange:
        """Begin a request; its `ended` is set when the answer is whole or the connection broke."""
        exchange = Exchange(self.server.request(path, body))
        self.open.add(exchange)
        connecting = asyncio.create_task(self._connect(exchange))

        def note_end(_: asyncio.Future[None]) -> None:
            connecting.cancel()
            self.open.discard(exchange)

        exchange.ended.add_done_callback(note_end)
        return exchange

    async def ask(self, path: str, body: bytes) -> Exchange:
        """Send a request and wait for the end of its answer."""
        exchange = self.start(path, body)
        await exchange.ended
        return exchange

    async def cancel_all(self) -> None:
        """Close every connection that is open; returns when they are."""
        exchanges = [*self.open]
        for exchange in exchanges:
            exchange.cancel()
        await all_ended(exchanges)

    async def _connect(self, exchange: Exchange) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await loop.create_connection(
                    lambda: exchange, self._host, self._port, ssl=self._tls
                )
                if exchange.is_cancelled:  # while it was connecting
                    exchange.cancel()
                await exchange.ended
        except TimeoutError:
            exchange.cancel()
        except OSError:
            exchange.end()


@dataclass(frozen=True, slots=True)
class Answer:
    """What one exchange brought. Times are those of the Exchange."""

    asked_at: float
    ended_at: float
    status: int  # 0: the connection broke before a status came
    token_times: tuple[float, ...] = ()  # of the events with text, several tokens in some
    num_tokens: int = 0  # generated, as the server counts them
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    is_whole: bool = False
    is_cancelled: bool = False  # by the load, on purpose
    retry_after_s: float | None = None
    error: str = ""

    @property
    def is_rejected(self) -> bool:
        return self.status in _REJECTED

    @property
    def is_failed(self) -> bool:
        """Neither whole nor rejected, and not given up by the load itself."""
        return not (self.is_whole or self.is_rejected or self.is_cancelled)

    @property
    def ttft_s(self) -> float | None:
        """Seconds to the first token."""
        return self.token_times[0] - self.asked_at if self.token_times else None

    @property
    def s_per_token(self) -> float | None:
        """Mean seconds between tokens after the first; None where there are too few to say."""
        if self.num_tokens < 2 or len(self.token_times) < 2:
            return None
        return (self.token_times[-1] - self.token_times[0]) / (self.num_tokens - 1)


def parse(exchange: Exchange) -> Answer:
    """Read what came."""
    common: dict[str, Any] = {
        "asked_at": exchange.asked_at,
        "ended_at": exchange.ended_at,
        "is_cancelled": exchange.is_cancelled,
    }
    received = b"".join(data for _, data in exchange.reads)
    head, found, body = received.partition(b"\r\n\r\n")
    if not found:
        return Answer(status=0, error="the connection broke", **common)
    status, headers = _head(head)
    if status != 200:
        retry = headers.get("retry-after", "")
        return Answer(
            status=status,
            retry_after_s=float(retry) if retry.isdigit() else None,
            error=body[-300:].decode(errors="replace"),
            **common,
        )
    is_chunked = "chunked" in headers.get("transfer-encoding", "")
    return Answer(status=status, **common, **_events(exchange, len(head) + 4, is_chunked))


def _head(head: bytes) -> tuple[int, dict[str, str]]:
    lines = head.decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines[1:])
    return int(lines[0].split()[1]), {name.lower(): value.strip() for name, _, value in pairs}


def _events(exchange: Exchange, num_head: int, is_chunked: bool) -> dict[str, Any]:
    """The fields of an Answer that its server-sent events say."""
    times: list[float] = []
    usage: dict[str, Any] = {}
    reason = error = ""
    is_done = False
    for at, line in _lines(exchange, num_head, is_chunked):
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            is_done = True
            continue
        event = json.loads(data)
        usage = event.get("usage") or usage
        error = json.dumps(event["error"])[:300] if "error" in event else error
        for choice in event.get("choices") or ():
            reason = choice.get("finish_reason") or reason
            if _has_text(choice) or choice.get("finish_reason"):
                times.append(at)
    details = usage.get("prompt_tokens_details") or {}
    return {
        "token_times": tuple(times),
        "num_tokens": usage.get("completion_tokens") or len(times),
        "num_prompt_tokens": usage.get("prompt_tokens") or 0,
        "num_cached_tokens": details.get("cached_tokens") or 0,
        "is_whole": is_done and bool(reason) and not error,
        "error": error,
    }


def _has_text(choice: dict[str, Any]) -> bool:
    delta = choice.get("delta") or {}
    named = ("content", "reasoning", "reasoning_content", "tool_calls")
    return bool(choice.get("text")) or any(delta.get(name) for name in named)


def _lines(exchange: Exchange, num_head: int, is_chunked: bool) -> Iterator[tuple[float, bytes]]:
    """The lines of the body, each with the time of the read that completed it."""
    chunks = _Dechunker() if is_chunked else None
    rest = b""
    for at, data in exchange.reads:
        if num_head:  # part of the head
            data, num_head = data[num_head:], max(num_head - len(data), 0)
        rest += data if chunks is None else chunks.feed(data)
        *lines, rest = rest.split(b"\n")
        yield from ((at, line) for line in lines)
    if rest:
        yield exchange.reads[-1][0], rest


class _Dechunker:
    """Takes HTTP's chunked framing off a stream."""

    def __init__(self) -> None:
        self._rest = b""
        self._num_left = 0  # bytes of the present chunk
        self._num_framing = 0  # of the line end after it

    def feed(self, data: bytes) -> bytes:
        """The payload that these bytes complete."""
        self._rest += data
        payload = []
        while self._rest:
            if self._num_left or self._num_framing:
                taken = self._rest[: self._num_left]
                payload.append(taken)
                skipped = self._rest[len(taken) : len(taken) + self._num_framing]
                self._rest = self._rest[len(taken) + len(skipped) :]
                self._num_left -= len(taken)
                self._num_framing -= len(skipped)
                continue
            size, found, rest = self._rest.partition(b"\r\n")
            if not found:
                break
            self._num_left, self._num_framing = int(size.partition(b";")[0], 16), 2
            self._rest = rest
        return b"".join(payload)
