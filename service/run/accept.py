"""How workers share out the connections that come to their one listener.

Every worker is woken for each connection and the first to ask gets it: on an idle machine
often the same one. So a worker that has more connections than another lets it go first.
"""

from __future__ import annotations

import asyncio
import logging
import mmap
import socket
import ssl
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Final

from engines.lines_per_address import LinesPerAddress
from service.http.connections import NUM_SPARE
from service.shared_files import CONNECTIONS, mapped

log = logging.getLogger(__name__)

COURTESY_S: Final = 0.002  # what a connection may wait for a worker that is busy or hangs
HANDSHAKE_S: Final = 10.0  # for a TLS handshake
MOST_HANDSHAKES: Final = 1024  # at once; each takes some 50 KB
_RETRY_S: Final = 0.5  # after an error, such as too many open files
_NUMBER: Final = struct.Struct("=i")


class Shares:
    """How many connections each worker has, in memory that all of them see."""

    def __init__(self, folder: Path | None = None, worker: int = 0) -> None:
        """`folder`: of the workers' shared files; None for a worker that is the only one."""
        self._memory = (
            mmap.mmap(-1, _NUMBER.size) if folder is None else mapped(folder, CONNECTIONS)
        )
        self._offset = worker * _NUMBER.size
        self.tell(0)

    def tell(self, num_connections: int) -> None:
        _NUMBER.pack_into(self._memory, self._offset, num_connections)

    @property
    def is_ahead(self) -> bool:
        """Return whether another worker has fewer connections than this one."""
        (own,) = _NUMBER.unpack_from(self._memory, self._offset)
        return any(number < own for (number,) in _NUMBER.iter_unpack(self._memory[:]))

    def close(self) -> None:
        self._memory.close()


class Acceptor:
    """Takes connections one by one from a listener that other processes read too."""

    def __init__(
        self,
        listener: socket.socket,
        protocol: Callable[[], asyncio.Protocol],
        tls: ssl.SSLContext | None,
        shares: Shares,
        num_connections: Callable[[], int],
        max_connections: int,
    ) -> None:
        """`max_connections`: beyond it, and NUM_SPARE, the oldest handshake makes room."""
        self._max_connections = max_connections
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._protocol = protocol
        self._tls = tls
        self._shares = shares
        self._num_connections = num_connections
        self._opening: dict[asyncio.Task[None], None] = {}  # the oldest first
        self._timer: asyncio.TimerHandle | None = None
        self._lines = LinesPerAddress()
        listener.setblocking(False)
        self._loop.add_reader(listener.fileno(), self._on_connection)

    def close(self) -> None:
        self._loop.remove_reader(self._listener.fileno())
        if self._timer is not None:
            self._timer.cancel()

    def _on_connection(self) -> None:
        self._shares.tell(self._num_connections() + len(self._opening))
        if self._shares.is_ahead:
            self.pause(COURTESY_S)
        else:
            self._accept()

    def pause(self, seconds: float) -> None:
        """Leave connections to others, or waiting, for so long."""
        self._loop.remove_reader(self._listener.fileno())
        self._timer = self._loop.call_later(seconds, self.resume)

    def resume(self) -> None:
        """Accept from now on."""
        if self._timer is not None:
            self._timer.cancel()
        self._loop.add_reader(self._listener.fileno(), self._on_connection)
        self._accept()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return  # another worker has it, or its client has left
        except OSError as error:
            # The caller is not known: all of these count as one address's.
            self._lines.warning(log, "", "No connection can be accepted: %s", error)
            self.pause(_RETRY_S)
            return
        connection.setblocking(False)
        task = self._loop.create_task(self._open(connection))
        self._opening[task] = None
        task.add_done_callback(self._opening.pop)
        self._make_room()
        self._shares.tell(self._num_connections() + len(self._opening))

    def _make_room(self) -> None:
        """End the oldest handshake while there are too many: those with nothing to hide take
        milliseconds."""
        num_opening = len(self._opening)
        room = self._max_connections + NUM_SPARE - self._num_connections()
        if self._tls is not None and num_opening > max(1, min(room, MOST_HANDSHAKES)):
            next(iter(self._opening)).cancel()

    async def _open(self, connection: socket.socket) -> None:
        timeout_s = None if self._tls is None else HANDSHAKE_S
        try:
            await self._loop.connect_accepted_socket(
                self._protocol, connection, ssl=self._tls, ssl_handshake_timeout=timeout_s
            )
        except (OSError, ssl.SSLError, asyncio.CancelledError) as error:
            log.debug("A connection was not established: %s", error)
            connection.close()
