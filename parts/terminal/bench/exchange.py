"""One streamed request to an OpenAI-compatible server, and when each piece of its answer came.

While a load runs only bytes and times are kept, so that the client is not what is measured; they
are parsed when the load has ended.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, cast
from urllib.parse import urlsplit

from httptools import HttpParserError, HttpResponseParser

_TIMEOUT_S: Final = 600.0  # of one answer: past every server's own limit
_REJECTED: Final = (429, 503, 529)
_KINDS: Final = {
    **dict.fromkeys((400, 404, 405, 413, 415, 422, 501), "refused"),
    **dict.fromkeys((401, 403), "not allowed"),
    **dict.fromkeys(_REJECTED, "overloaded"),
}


@dataclass(frozen=True, slots=True)
class Server:
    """Where requests go."""

    name: str
    url: str  # up to and without /v1
    model: str
    api_key: str = ""
    is_in_tokens: bool = False  # prompts are token ids for /v1/completions, else words of a chat
    ignores_end: bool = True  # it knows `ignore_eos`: answers have exactly the length asked for

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
        self.is_connected = False

    @property
    def first_at(self) -> float | None:
        """When the first bytes came: close to the first token, known before anything is parsed."""
        return self.reads[0][0] if self.reads else None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        self.is_connected = True
        self._transport.write(self._request)
        self._request = b""

    def data_received(self, data: bytes) -> None:
        self.reads.append((time.perf_counter(), data))

    def connection_lost(self, exc: Exception | None) -> None:
        self.end()

    def cancel(self) -> None:
        self.is_cancelled = True
        self.abort()

    def abort(self) -> None:
        """Close the connection: the answer does not end by itself."""
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
                    exchange.abort()
                await exchange.ended
        except TimeoutError:
            exchange.abort()
            exchange.end()
        except OSError:
            exchange.end()


@dataclass(frozen=True, slots=True)
class TimedAnswer:
    """What one exchange brought. Times are those of the Exchange."""

    asked_at: float
    ended_at: float
    status: int  # 0: the connection broke before a status came
    token_times: tuple[float, ...] = ()  # of the events with text, several tokens in some
    num_tokens: int = 0  # generated, as the server counts them
    num_prompt_tokens: int = 0
    num_cached_tokens: int | None = None  # None: the server does not say
    has_usage: bool = False
    is_whole: bool = False
    is_cancelled: bool = False  # by the load, on purpose
    retry_after_s: float | None = None
    error: str = ""  # the server's message, or what happened
    is_connected: bool = True

    @property
    def is_rejected(self) -> bool:
        return self.status in _REJECTED

    @property
    def is_failed(self) -> bool:
        """Neither whole nor rejected, and not given up by the load itself."""
        return not (self.is_whole or self.is_rejected or self.is_cancelled)

    @property
    def error_kind(self) -> str | None:
        """What became of an answer that is not whole; None for one that is, or was given up."""
        if not (self.is_failed or self.is_rejected):
            return None
        if self.status == 200:
            return "error in the stream" if self.error else "cut off"
        if self.status == 0:
            return "cut off" if self.is_connected else "no connection"
        return _KINDS.get(self.status, f"HTTP {self.status}")

    @property
    def ttft_s(self) -> float | None:
        return self.token_times[0] - self.asked_at if self.token_times else None

    @property
    def s_per_token(self) -> float | None:
        """Mean seconds between tokens after the first; None where there are too few to say."""
        if self.num_tokens < 2 or len(self.token_times) < 2:
            return None
        return (self.token_times[-1] - self.token_times[0]) / (self.num_tokens - 1)


def parse(exchange: Exchange) -> TimedAnswer:
    reply = _Reply(exchange.reads)
    common: dict[str, Any] = {
        "asked_at": exchange.asked_at,
        "ended_at": exchange.ended_at,
        "status": reply.status,
        "is_cancelled": exchange.is_cancelled,
        "is_connected": exchange.is_connected,
    }
    if reply.status == 0:
        return TimedAnswer(**common)
    if reply.status != 200:
        retry = reply.headers.get(b"retry-after", b"")
        retry_s = float(retry) if retry.isdigit() else None
        return TimedAnswer(**common, retry_after_s=retry_s, error=_message(reply.body))
    if b"json" in reply.headers.get(b"content-type", b""):
        return TimedAnswer(**common, **_whole(exchange, reply.body))
    return TimedAnswer(**common, **_events(reply))


class _Reply:
    """The head of an answer, and the lines of its body with the time of the read that completed
    each."""

    def __init__(self, reads: Sequence[tuple[float, bytes]]) -> None:
        self.status = 0  # until the head is whole
        self.headers: dict[bytes, bytes] = {}
        self._lines: list[tuple[float, bytes]] = []
        self._at, self._rest = 0.0, b""
        self._parser = HttpResponseParser(self)
        with suppress(HttpParserError):  # what is behind the answer, or is none
            for self._at, data in reads:
                self._parser.feed_data(data)

    @property
    def lines(self) -> list[tuple[float, bytes]]:
        return [*self._lines, (self._at, self._rest)] if self._rest else self._lines

    @property
    def body(self) -> bytes:
        return b"\n".join(line for _, line in self.lines)

    # Called by the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._lines += [(self._at, line) for line in lines]


def _message(body: bytes) -> str:
    """What a server says of an error, in OpenAI's form or another."""
    try:
        found = json.loads(body)
        error = found.get("error", found)
        return str(error.get("message", error) if isinstance(error, dict) else error)[:300]
    except (ValueError, AttributeError):
        return body[:300].decode(errors="replace")


def _whole(exchange: Exchange, body: bytes) -> dict[str, Any]:
    """The fields of a TimedAnswer that was not streamed: its first token comes with its last."""
    try:
        answer = json.loads(body)
    except ValueError:
        return {}
    return {"token_times": (exchange.ended_at,), "is_whole": True, **_usage(answer, 1)}


def _usage(answer: dict[str, Any], num_events: int) -> dict[str, Any]:
    usage = answer.get("usage") or {}
    return {
        "num_tokens": usage.get("completion_tokens") or num_events,
        "num_prompt_tokens": usage.get("prompt_tokens") or 0,
        "num_cached_tokens": (usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
        "has_usage": bool(usage),
    }


def _events(reply: _Reply) -> dict[str, Any]:
    """The fields of a TimedAnswer that its server-sent events say."""
    times: list[float] = []
    last: dict[str, Any] = {}  # with usage
    reason = error = ""
    is_done = False
    for at, line in reply.lines:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            is_done = True
            continue
        event = json.loads(data)
        last = event if event.get("usage") else last
        error = _message(data) if "error" in event else error
        for choice in event.get("choices") or ():
            reason = choice.get("finish_reason") or reason
            if _has_text(choice) or choice.get("finish_reason"):
                times.append(at)
    return {
        "token_times": tuple(times),
        **_usage(last, len(times)),
        "is_whole": is_done and bool(reason) and not error,
        "error": error,
    }


def _has_text(choice: dict[str, Any]) -> bool:
    delta = choice.get("delta") or {}
    named = ("content", "reasoning", "reasoning_content", "tool_calls")
    return bool(choice.get("text")) or any(delta.get(name) for name in named)
