"""When connections have to go: there are too many, or their client does not read.

A client without credentials can open connections as fast as a probe can. So those that carry no
request make room, the longest idle first: a flood of idle ones then drives out itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sized
from typing import Final, Generic, TypeVar

from starlette.types import ASGIApp, Receive, Scope, Send

from engines.lines_per_address import LinesPerAddress
from service.errors import UNAVAILABLE, RequestError
from service.http.answers import error_response
from service.http.paths import ROW, Paths

NUM_SPARE: Final = 64  # connections beyond the limit
# While there is still a spare connection, these do not make room yet: those whose first request is
# to come, and those that were answered.
GRACE_S: Final = 1.0
REST_S: Final = 5.0

C = TypeVar("C")

log = logging.getLogger("harmonium.limits")
_lines: Final = LinesPerAddress()  # of clients that do not read

LEAST_BYTES_S: Final = 500  # slower than this is no connection worth keeping


class IdleConnections(Generic[C]):
    """The connections of one server that carry no request now, the longest idle first."""

    def __init__(self) -> None:
        self._silent: dict[C, float] = {}  # have sent none yet; since when
        # Have had an answer and are kept for the next request; since when.
        self._resting: dict[C, float] = {}

    def enter(self, connection: C, now_s: float) -> None:
        self._silent[connection] = now_s

    def rest(self, connection: C, now_s: float) -> None:
        self._resting[connection] = now_s

    def leave(self, connection: C) -> None:
        self._silent.pop(connection, None)
        self._resting.pop(connection, None)

    def pop(self, now_s: float, *, is_pressing: bool) -> C | None:
        """Remove and return the connection that makes room for another; None for none.

        Without need: one that has been idle for a while. Where no connection is spare
        (`is_pressing`): any that carries no request.
        """
        for idle, grace_s in ((self._silent, GRACE_S), (self._resting, REST_S)):
            first = next(iter(idle), None)
            if first is not None and (is_pressing or now_s >= idle[first] + grace_s):
                self.leave(first)
                return first
        return None


class ConnectionLimit:
    """An application that answers 503 on a connection over the limit."""

    def __init__(
        self, app: ASGIApp, connections: Sized, max_connections: int, paths: Paths
    ) -> None:
        self._app = app
        self._paths = paths
        self._connections = connections
        self._max_connections = max_connections
        self._error = RequestError(
            f"This server has {max_connections} connections open, which is its limit "
            "(NIM_MAX_CONNECTIONS); try again in a moment.",
            status=503,
            type=UNAVAILABLE,
            code="too_many_connections",
            headers={"Retry-After": "1", "Connection": "close"},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request; while the server is crowded, answer it with a 503."""
        is_crowded = len(self._connections) > self._max_connections
        row = scope[ROW] = self._paths.row(scope["path"])
        # A busy server must not be taken for a dead one.
        if not is_crowded or row.is_probe:
            await self._app(scope, receive, send)
        else:
            await error_response(self._error, scope)(scope, receive, send)


class ReaderWatch:
    """Cuts a connection whose client reads its answer too slowly."""

    def __init__(
        self, transport: asyncio.Transport, patience_s: float, on_cut: Callable[[], None]
    ) -> None:
        self._on_cut = on_cut
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._patience_s = patience_s
        self._num_unread = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self.stop()
        self._num_unread = self._transport.get_write_buffer_size()
        if self._num_unread:
            self._timer = self._loop.call_later(self._patience_s, self._look)

    def watch(self) -> None:
        """Start watching, unless it is watched already: bytes were written."""
        if self._timer is None:
            self.start()

    def stop(self) -> None:
        """Stop watching: the client has read, or has disconnected."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        num_unread = self._transport.get_write_buffer_size()
        num_read = self._num_unread - num_unread
        if num_unread and num_read < LEAST_BYTES_S * self._patience_s:
            peer = self._transport.get_extra_info("peername")
            address = str(peer[0]) if isinstance(peer, tuple) else "unknown"
            message = "A client read only %d bytes of its answer in %g s; closing its connection."
            _lines.warning(log, address, message, num_read, self._patience_s)
            self._on_cut()
            self._transport.abort()
        else:
            self.start()
