"""uvicorn's HTTP protocol, with an end to slowness, to the size of heads and to connections.

uvicorn bounds none of them: without this, clients that never finish a request or never read its
answer keep their sockets for ever, and one endless header fills the memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, ClassVar, Final

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from auth.address import plain_address
from engines.lines_per_address import LinesPerAddress
from service.http.connections import (
    LEAST_BYTES_S,
    NUM_SPARE,
    ConnectionLimit,
    IdleConnections,
    ReaderWatch,
)
from service.http.failures import ErrorAnswer, ErrorKind
from service.http.paths import Paths
from service.http.tls import peer_state
from service.http.upgrade import UpgradeFilter
from service.http.websocket import Socket, Upgrade, wants_socket

_BAD_REQUEST = ErrorKind(400, "invalid_request_error", "invalid_http")
_TIMED_OUT = ErrorKind(408, "invalid_request_error", "request_timeout")
_TOO_MANY = ErrorKind(429, "rate_limit_error", "too_many_connections")
_TOO_MANY_CHUNKS = ErrorKind(400, "invalid_request_error", "chunks_too_small")
_HEAD_TOO_LARGE = ErrorKind(431, "invalid_request_error", "headers_too_large")
_CHUNKS = "The body has thousands of chunks of a few bytes; send it in larger ones."

HEAD_PIECE_BYTES: Final = 1024  # parsed at once; what follows waits if it has another request
PIECE_BYTES: Final = 4096  # the same of a body
FREE_CHUNKS: Final = 4096  # of a body; with more of them the mean must be LEAST_CHUNK_BYTES
LEAST_CHUNK_BYTES: Final = 64
MOST_UNPARSED_BYTES: Final = 1 << 20  # behind requests that wait for the answer to an earlier one
MOST_UNWANTED_BYTES: Final = 16 << 20  # of a body whose request is answered already

log = logging.getLogger("harmonium.limits")
_lines: Final = LinesPerAddress()  # of heads that cannot be read
# uvicorn warns of each such head.
_ERRORS_ALONE: Final = logging.getLogger("uvicorn.error.connection")
_ERRORS_ALONE.setLevel(logging.ERROR)


class BoundedProtocol(HttpToolsProtocol):
    """One HTTP/1.1 connection with bounds; what it refuses by itself is answered in JSON too."""

    max_head_bytes = 65536
    max_connections = 4096
    max_connections_per_address: int | None = None
    num_connections_of: ClassVar[Counter[str]] = Counter()  # by address; of one server, if bounded
    # Of one server: each subclass has its own.
    idle: IdleConnections[BoundedProtocol] = IdleConnections()
    patience_s = 30.0  # for a whole head, and each next piece of a body
    reader_patience_s = 30.0
    paths = Paths()  # which of them are probes, and which may become WebSockets
    max_message_bytes = 10 << 20  # of a WebSocket

    @staticmethod
    def on_slow_reader() -> None:
        """Called when a client is cut off that does not read."""

    def __init_subclass__(cls) -> None:
        cls.idle = IdleConnections()
        cls.num_connections_of = Counter()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.logger = _ERRORS_ALONE
        self._fault: ErrorAnswer | None = None  # of a head that the parser could read
        self._address = ""  # while it counts
        self._num_head_bytes = 0
        self._is_in_head = True
        self._timer: asyncio.TimerHandle | None = None
        self._body_due_at = 0.0  # later with each byte that came
        self._body: list[bytes] = []  # parsed and not handed on
        self._num_body_bytes = 0
        self._num_chunks = 0
        self._upgrades = UpgradeFilter()
        self._unparsed = b""  # read behind a request that waits for another one's answer
        self._socket: Socket | None = None  # from the request for one to its end

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection; over a bound it is refused, or an idle one is dropped for it."""
        super().connection_made(transport)
        if self.client is not None:
            self.client = (plain_address(self.client[0]), self.client[1])
        self.app_state = self.app_state | peer_state(transport)
        self._reader = ReaderWatch(transport, self.reader_patience_s, self.on_slow_reader)
        if self._is_one_too_many():
            self._refuse(_TOO_MANY, self._too_many())
            return
        if len(self.connections) > self.max_connections and not self._make_room():
            transport.abort()
            return
        if len(self.connections) > self.max_connections:
            self.app = ConnectionLimit(self.app, self.connections, self.max_connections, self.paths)
        self.idle.enter(self, self.loop.time())
        self._wait()

    def _is_one_too_many(self) -> bool:
        """Count the connection for its address, where there is a bound; whether it is over it."""
        most = self.max_connections_per_address
        if most is None or self.client is None:
            return False
        self._address = self.client[0]
        self.num_connections_of[self._address] += 1
        return self.num_connections_of[self._address] > most

    def _uncount(self) -> None:
        address, self._address = self._address, ""
        if address:
            self.num_connections_of[address] -= 1
            if not self.num_connections_of[address]:
                del self.num_connections_of[address]

    def _make_room(self) -> bool:
        """Drop one that carries no request; false when there is none and no place to spare."""
        is_pressing = len(self.connections) - self.max_connections > NUM_SPARE
        dropped = self.idle.pop(self.loop.time(), is_pressing=is_pressing)
        if dropped is not None:
            self.connections.discard(dropped)
            dropped.transport.abort()
        return dropped is not None or not is_pressing

    def connection_lost(self, exc: Exception | None) -> None:
        if self._socket is not None:
            self._socket.lose()
        self._uncount()
        self.idle.leave(self)
        self._stop_waiting()
        self._reader.stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came, piece by piece; behind a request that has to wait the rest waits too."""
        if self._socket is not None and self._socket.is_open:
            self._socket.feed(data)
            return
        if self._unparsed:
            self._unparsed += data
            self.flow.pause_reading()
            if len(self._unparsed) > MOST_UNPARSED_BYTES:
                self.transport.abort()
            return
        view = memoryview(data)
        while view:
            if self.transport.is_closing():
                return
            if self.pipeline or self._socket is not None:
                self._unparsed = bytes(view)
                return
            size = HEAD_PIECE_BYTES if self._is_in_head else PIECE_BYTES
            self._parse(bytes(view[:size]))
            view = view[size:]
        if self._num_chunks:
            self._read_on_later()

    def _read_on_later(self) -> None:
        """Read on in the next turn: uvloop reads megabytes in one, which may be many chunks."""
        self.transport.pause_reading()
        self.loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if not self.flow.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def _parse(self, data: bytes) -> None:
        """Parse a piece; a head that grows over its bound is refused before it is whole."""
        self._num_head_bytes += len(data)  # the parser's callbacks set it back
        data = self._upgrades.head(data) if self._is_in_head else self._upgrades.body(data)
        if data:
            super().data_received(data)
        self._hand_on()
        if self._is_in_head and self._num_head_bytes > self.max_head_bytes:
            self._refuse(_HEAD_TOO_LARGE, self._too_large())
        elif not self._is_in_head:
            self._check_body()
        elif self._timer is None and not self._is_answering():
            self._wait()  # uvicorn ended its own waiting, perhaps for an empty line

    def _resume(self) -> None:
        """Parse what was read behind a request whose turn has come."""
        data, self._unparsed = self._unparsed, b""
        self.data_received(data)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._num_head_bytes = 0
        if self._timer is None:
            self._wait()

    def on_headers_complete(self) -> None:
        """Check the head before uvicorn begins the request, and begin to wait for its body."""
        self.idle.leave(self)
        self._fault = self._fault_of_head()
        if self._fault is not None:
            raise ValueError("not a valid HTTP/1.1 request")  # ends the parsing
        app = self.app
        if self._wants_socket():
            self._socket = Socket(self.transport, self.flow, self._reader)
            self.app = Upgrade(app, self._socket, self.max_message_bytes)
        super().on_headers_complete()
        if self._socket is not None:
            self.app, self._socket.answer = app, self.cycle
        self._is_in_head = False
        self._num_body_bytes = self._num_chunks = 0
        self._body_due_at = self.loop.time() + self.patience_s
        self._wait()

    def on_chunk_header(self) -> None:
        self._num_chunks += 1

    def on_body(self, body: bytes) -> None:
        """Keep a piece of the body until all that came with it is parsed."""
        self._body.append(body)
        self._num_body_bytes += len(body)

    def _hand_on(self) -> None:
        """Hand on what came of the body: uvicorn copies all it has for each piece."""
        if self._body:
            body, self._body = b"".join(self._body), []
            self._body_due_at += len(body) / LEAST_BYTES_S
            super().on_body(body)

    def _check_body(self) -> None:
        """Refuse a body that comes slower than LEAST_BYTES_S, in too many chunks, or without a
        use."""
        least = LEAST_CHUNK_BYTES * (self._num_chunks - 1)  # the last one may still be coming
        if self._num_chunks > FREE_CHUNKS and self._num_body_bytes < least:
            self._refuse(_TOO_MANY_CHUNKS, _CHUNKS)
        elif self.cycle.response_complete and self._num_body_bytes > MOST_UNWANTED_BYTES:
            self.transport.close()
        elif self.loop.time() > self._body_due_at and not self._is_answering_earlier():
            self._refuse(
                _TIMED_OUT, f"The body arrives at less than {LEAST_BYTES_S} bytes per second."
            )
        else:
            self._wait()

    def on_message_complete(self) -> None:
        self._hand_on()
        self._stop_waiting()
        self._is_in_head, self._num_head_bytes = True, 0
        super().on_message_complete()

    def pause_writing(self) -> None:
        """Watch the reader, whose side is full."""
        super().pause_writing()
        self._reader.start()

    def resume_writing(self) -> None:
        """Stop watching the reader: it has caught up."""
        super().resume_writing()
        self._reader.stop()

    def on_response_complete(self) -> None:
        """Count the connection as idle unless the next request is here already."""
        self._reader.start()  # nothing may be left to pause for
        if self._socket is not None and not self._is_answering():
            self._socket = None  # it was refused
        super().on_response_complete()
        if self._unparsed:
            if self.pipeline:
                self.flow.pause_reading()
            else:
                self.loop.call_soon(self._resume)
        elif not self._is_answering() and not self.transport.is_closing():
            self.idle.rest(self, self.loop.time())

    def send_400_response(self, msg: str) -> None:
        """Answer what uvicorn's parser cannot read; called by uvicorn."""
        message = f"{msg.rstrip('.')}: this port speaks plain HTTP/1.1."
        fault = self._fault or ErrorAnswer(_BAD_REQUEST, message)
        address = self.client[0] if self.client else "unknown"
        _lines.warning(log, address, "A request of %s was refused: %s", address, fault.message)
        self._refuse(fault.kind, fault.message)

    def _fault_of_head(self) -> ErrorAnswer | None:
        """What the parser lets pass: too large a head that came whole, HTTP/0.9, and what RFC 9112
        §3.2 says of Host."""
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self.max_head_bytes:
            return ErrorAnswer(_HEAD_TOO_LARGE, self._too_large())
        version = self.parser.get_http_version()
        if version not in ("1.0", "1.1"):
            return ErrorAnswer(_BAD_REQUEST, f"This is HTTP/{version}; send HTTP/1.1.")
        if self.parser.should_upgrade() and not self._wants_socket():  # it came in two pieces
            return ErrorAnswer(
                _BAD_REQUEST, "Protocol upgrades are not supported; leave out Upgrade."
            )
        num_hosts = sum(name == b"host" for name, _ in self.headers)
        if num_hosts > 1 or (num_hosts == 0 and version == "1.1"):
            message = f"The request has {num_hosts} Host headers; send exactly one."
            return ErrorAnswer(_BAD_REQUEST, message)
        return None

    def _wants_socket(self) -> bool:
        path = self.url.partition(b"?")[0].decode("latin-1")
        is_get = self.parser.get_method() == b"GET" and self.parser.get_http_version() == "1.1"
        return is_get and self.paths.row(path).is_websocket and wants_socket(self.headers)

    def _wait(self) -> None:
        self._stop_waiting()
        self._timer = self.loop.call_later(self.patience_s, self._on_silence)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_silence(self) -> None:
        if self._is_answering_earlier():
            self._body_due_at = self.loop.time() + 2 * self.patience_s  # we do not read meanwhile
            self._wait()
            return
        part = "headers" if self._is_in_head else "body"
        message = (
            f"The request's {part} did not arrive within {self.patience_s:g} s; send it again."
        )
        self._refuse(_TIMED_OUT, message)

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _is_answering_earlier(self) -> bool:
        """Whether closing now would cut the answer to a whole request, or we do not read."""
        is_earlier = self._is_in_head and self._is_answering()
        return is_earlier or bool(self.pipeline) or self.flow.read_paused

    def _refuse(self, kind: ErrorKind, message: str) -> None:
        self._stop_waiting()
        if self.transport.is_closing():
            return
        if not (self._is_answering() and self.cycle.response_started):
            self.transport.write(_answer(ErrorAnswer(kind, message)))
        self.transport.close()

    def _too_many(self) -> str:
        most = self.max_connections_per_address
        return (
            f"Your address has {most} connections open, the limit "
            "(NIM_MAX_CONNECTIONS_PER_ADDRESS); use those, or close some."
        )

    def _too_large(self) -> str:
        return f"The request's headers are larger than {self.max_head_bytes} bytes; shorten them."


def bounded_protocol(
    max_connections: int,
    max_connections_per_address: int | None = None,
    reader_patience_s: float = 30.0,
    on_slow_reader: Callable[[], None] | None = None,
    paths: Paths | None = None,
    max_message_bytes: int = BoundedProtocol.max_message_bytes,
) -> type[BoundedProtocol]:
    """The protocol class of a server with these limits of connections, in all and by address."""
    members: dict[str, Any] = {
        "max_connections": max_connections,
        "max_connections_per_address": max_connections_per_address,
        "reader_patience_s": reader_patience_s,
        "paths": paths or Paths(),
        "max_message_bytes": max_message_bytes,
    }
    if on_slow_reader is not None:
        members["on_slow_reader"] = staticmethod(on_slow_reader)
    return type("Bounded", (BoundedProtocol,), members)


def _answer(failure: ErrorAnswer) -> bytes:
    body = msgspec.json.encode(failure.body())
    status = HTTPStatus(failure.kind.status)
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\ncache-control: no-store\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
