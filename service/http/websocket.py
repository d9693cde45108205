"""WebSockets (RFC 6455) on a connection of protocol.py: messages of text in both directions.

The library `websockets` reads and writes frames. What it leaves open is bounded here: how much is
parsed in one turn of the event loop, how many fragments a message may have, how many control frames
may come, how long a message may take, and how much waits to be handled.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import logging
from collections import deque
from collections.abc import Collection, Iterable
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from websockets.frames import Frame, Opcode
from websockets.protocol import Protocol, Side, State

from service.errors import RequestError
from service.http.connections import LEAST_BYTES_S, ReaderWatch
from service.http.upgrade import IGNORED

SOCKET: Final = "harmonium.socket"  # a Socket, in the scope of a request that asks for one

PIECE_BYTES: Final = 2048  # parsed in one turn of the loop: no more than 340 frames
MOST_WAITING: Final = 8  # messages that were not taken yet; behind them nothing is read
FREE_FRAGMENTS: Final = 1024  # of a message; with more the mean must be LEAST_FRAGMENT_BYTES
LEAST_FRAGMENT_BYTES: Final = 64
FREE_CONTROLS: Final = 128  # pings and pongs that may come at once
CONTROLS_S: Final = 0.1  # for one more of them
LINGER_S: Final = 2.0  # for the client to read the close frame

_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_VERSION: Final = "13"

# The library would write a line for each frame and each end.
_quiet: Final = logging.getLogger("harmonium.websocket.frames")
_quiet.setLevel(logging.ERROR)


def wants_socket(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a request asks for a WebSocket; Upgrade may have its other name already."""
    upgrades = (value for name, value in headers if name in (IGNORED, b"upgrade"))
    return any(value.strip().lower() == b"websocket" for value in upgrades)


def accepting(headers: Headers, origins: Collection[str]) -> list[tuple[bytes, bytes]]:
    """The headers that open the WebSocket; raises RequestError for a handshake that cannot.

    Browsers let any page open one and read it, whatever CORS says: they leave the check of
    `Origin` to the server.
    """
    if headers.get("sec-websocket-version") != _VERSION:
        raise RequestError(
            f"Sec-WebSocket-Version must be {_VERSION}.",
            param="Sec-WebSocket-Version",
            code="unsupported_websocket_version",
            status=426,
            headers={"Sec-WebSocket-Version": _VERSION, "Upgrade": "websocket"},
        )
    key = headers.get("sec-websocket-key", "")
    tokens = {token.strip().lower() for token in headers.get("connection", "").split(",")}
    if "upgrade" not in tokens or not _is_key(key):
        raise RequestError(
            "This is no WebSocket handshake: it needs Connection: Upgrade and a "
            "Sec-WebSocket-Key of 16 bytes in base64.",
            param="Sec-WebSocket-Key",
            code="invalid_websocket_handshake",
        )
    if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
        raise RequestError(
            "A WebSocket handshake has no body; leave it out.", code="invalid_websocket_handshake"
        )
    _check_origin(headers, origins)
    accept = base64.b64encode(hashlib.sha1(key.encode() + _GUID, usedforsecurity=False).digest())
    return [
        (b"upgrade", b"websocket"),
        (b"connection", b"Upgrade"),
        (b"sec-websocket-accept", accept),
    ]


def _is_key(key: str) -> bool:
    try:
        return len(base64.b64decode(key, validate=True)) == 16
    except (binascii.Error, ValueError):
        return False


def _check_origin(headers: Headers, origins: Collection[str]) -> None:
    origin = headers.get("origin")
    if origin is None or origin in origins or "*" in origins:
        return
    try:
        host = urlsplit(origin).netloc
    except ValueError:
        host = ""
    if host != headers.get("host", ""):
        raise RequestError(
            f"Pages of {origin[:80]!r} may not open a WebSocket here: NIM_CORS_ALLOW_ORIGINS "
            "lists those that may.",
            param="Origin",
            code="cors_refused",
            status=403,
        )


class Socket:
    """One WebSocket, from the request that asks for it to the end of the connection."""

    ping_s = 20.0
    most_unanswered = 3  # pings; then the client is gone
    patience_s = 30.0  # for the rest of a message, and each next piece of it

    def __init__(
        self, transport: asyncio.Transport, flow: FlowControl, reader: ReaderWatch
    ) -> None:
        self.answer: RequestResponseCycle | None = None  # the server's part of the request
        self.is_open = False
        self.ended = asyncio.Event()  # nothing more is read or written, except the end itself
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._flow = flow
        self._reader = reader
        self._lost = asyncio.Event()
        self._incoming = bytearray()  # read, and not parsed
        self._will_work = False
        self._parts: list[bytes] = []  # of the message that is coming
        self._messages: deque[bytes] = deque()
        self._num_bytes = 0  # of those that wait
        self._has_come = asyncio.Event()
        self._due_at: float | None = None  # for the message that is coming
        self._controls_until = 0.0
        self._num_unanswered = 0
        self._timer: asyncio.TimerHandle | None = None

    def open(self, status_line: bytes, headers: Iterable[tuple[bytes, bytes]], most: int) -> None:
        """Answer the handshake; messages may have `most` bytes."""
        assert self.answer is not None
        self.is_open = self.answer.response_started = True
        self._most_bytes = most
        self._frames = Protocol(Side.SERVER, state=State.OPEN, max_size=most, logger=_quiet)
        lines = (b"%b: %b\r\n" % header for header in headers)
        self._transport.write(b"%b\r\n%b\r\n" % (status_line, b"".join(lines)))
        self._timer = self._loop.call_later(self.ping_s, self._tick)

    async def receive(self) -> bytes | None:
        """The next message, valid UTF-8; None when the WebSocket has ended."""
        while not (self._messages or self.ended.is_set()):
            self._has_come.clear()
            await self._has_come.wait()
        if self.ended.is_set():
            return None
        message = self._messages.popleft()
        self._num_bytes -= len(message)
        self._read_on()
        return message

    async def send(self, texts: Iterable[bytes]) -> None:
        """Send messages in order, and wait while the client is behind with reading."""
        if self.ended.is_set():
            return
        for text in texts:
            self._frames.send_text(text)
        self._flush()
        self._reader.watch()
        await self._flow.drain()

    async def close(self, code: int, reason: str = "") -> None:
        """End it, and wait shortly for the client to do the same."""
        if not self.ended.is_set():
            self._frames.send_close(code, reason)
            self._flush()
            self._end()
            self._read_on()
        try:
            async with asyncio.timeout(LINGER_S):
                await self._lost.wait()
        except TimeoutError:
            self._transport.close()
        if self.answer is not None:
            self.answer.response_complete = True

    # Called by the connection

    def feed(self, data: bytes) -> None:
        self._num_unanswered = 0
        self._incoming += data
        if not self._will_work:
            self._work()

    def lose(self) -> None:
        self._lost.set()
        self._end()
        if self._timer is not None:
            self._timer.cancel()

    # Reading

    @property
    def _is_full(self) -> bool:
        return len(self._messages) >= MOST_WAITING or self._num_bytes > self._most_bytes

    def _read_on(self) -> None:
        if self._incoming and not self._will_work:
            self._will_work = True
            self._loop.call_soon(self._work_later)
        elif not self._incoming:
            self._resume()

    def _resume(self) -> None:
        if not (self._lost.is_set() or self._transport.is_closing()):
            self._flow.resume_reading()

    def _work_later(self) -> None:
        self._will_work = False
        self._work()

    def _work(self) -> None:
        """Parse a piece of what was read; the rest in later turns of the loop."""
        if self._lost.is_set() or self._transport.is_closing():
            return
        piece = bytes(self._incoming[:PIECE_BYTES])
        del self._incoming[:PIECE_BYTES]
        self._frames.receive_data(piece)
        frames = self._frames.events_received()
        for frame in frames:
            assert isinstance(frame, Frame)
            self._take(frame)
        self._wait_for_rest(len(piece), is_between=bool(frames) and not self._parts)
        self._flush()
        if self._is_full:
            self._flow.pause_reading()
        elif self._incoming:
            self._flow.pause_reading()
            self._read_on()
        else:
            self._resume()

    def _take(self, frame: Frame) -> None:
        if self.ended.is_set():
            return
        match frame.opcode:
            case Opcode.TEXT | Opcode.CONT:
                self._take_text(bytes(frame.data), is_last=frame.fin)
            case Opcode.BINARY:
                self._fail(1003, "messages are text")
            case Opcode.CLOSE:
                self._end()
            case _:
                now = self._loop.time()
                self._controls_until = max(self._controls_until, now) + CONTROLS_S
                if self._controls_until > now + FREE_CONTROLS * CONTROLS_S:
                    self._fail(1008, "too many pings or pongs")

    def _take_text(self, data: bytes, *, is_last: bool) -> None:
        self._parts.append(data)
        if is_last:
            message = b"".join(self._parts)
            self._parts = []
            try:
                message.decode()
            except UnicodeDecodeError:
                self._fail(1007, "not valid UTF-8")
                return
            self._messages.append(message)
            self._num_bytes += len(message)
            self._has_come.set()
        elif len(self._parts) % FREE_FRAGMENTS == 0 and self._are_parts_small():
            self._fail(1008, "thousands of fragments of a few bytes")

    def _are_parts_small(self) -> bool:
        return sum(map(len, self._parts)) < LEAST_FRAGMENT_BYTES * len(self._parts)

    def _wait_for_rest(self, num_bytes: int, *, is_between: bool) -> None:
        """Give a message that has begun more time for each byte of it."""
        if is_between:
            self._due_at = None
        elif self._due_at is None:
            self._due_at = self._loop.time() + self.patience_s
        else:
            self._due_at += num_bytes / LEAST_BYTES_S

    def _tick(self) -> None:
        """Ask whether the client is there; end the WebSocket if it is gone or too slow."""
        self._timer = self._loop.call_later(self.ping_s, self._tick)
        if self._flow.read_paused:  # we do not read: what it sent waits
            self._num_unanswered, self._due_at = 0, None
        elif self._num_unanswered >= self.most_unanswered:
            self._transport.abort()
            return
        elif self._due_at is not None and self._loop.time() > self._due_at:
            self._fail(1008, "the rest of a message did not come")
        if not self.ended.is_set():
            self._num_unanswered += 1
            self._frames.send_ping(b"")
            self._flush()
            self._reader.watch()

    # Ending

    def _fail(self, code: int, reason: str) -> None:
        self._frames.fail(code, reason)
        self._flush()

    def _end(self) -> None:
        self.ended.set()
        self._has_come.set()
        self._messages.clear()
        self._parts = []

    def _flush(self) -> None:
        """Write what the library has to send; an empty piece is the end."""
        for data in self._frames.data_to_send():
            if self._transport.is_closing():
                return
            if data:
                self._transport.write(data)
                continue
            self._end()
            if self._frames.close_rcvd:
                self._transport.close()
                return
            # A client that is still writing when we close may never read why.
            if self._transport.can_write_eof():
                self._transport.write_eof()
            self._loop.call_later(LINGER_S, self._transport.close)


class Upgrade:
    """An application around a request that may become a WebSocket.

    The application finds the Socket in its scope, and opens it with an answer of status 101.
    """

    def __init__(self, app: ASGIApp, socket: Socket, most_bytes: int) -> None:
        self._app = app
        self._socket = socket
        self._most_bytes = most_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the request; once the socket is open, its connection ends with the application."""
        socket = self._socket
        scope[SOCKET] = socket

        async def send_or_open(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 101:
                line = b"HTTP/1.1 101 Switching Protocols"
                socket.open(line, message["headers"], self._most_bytes)
            elif not socket.is_open:
                await send(message)

        try:
            await self._app(scope, receive, send_or_open)
        finally:
            if socket.is_open:
                await socket.close(1011)
