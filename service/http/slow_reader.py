"""An end to a client that does not read its answer."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

log = logging.getLogger("harmonium.limits")

LEAST_BYTES_S: Final = 500  # slower than this is no connection worth keeping


class ReaderWatch:
    """Watches how what is written leaves one connection, while there is too much of it."""

    def __init__(self, transport: asyncio.Transport, patience_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._patience_s = patience_s
        self._num_unread = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """From now on the client has to read, or the connection is cut."""
        self.stop()
        self._num_unread = self._transport.get_write_buffer_size()
        if self._num_unread:
            self._timer = self._loop.call_later(self._patience_s, self._look)

    def stop(self) -> None:
        """The client has read, or is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        num_unread = self._transport.get_write_buffer_size()
        num_read = self._num_unread - num_unread
        if num_unread and num_read < LEAST_BYTES_S * self._patience_s:
            log.warning(
                "A client read %d bytes of its answer in %g s; its connection is closed.",
                num_read,
                self._patience_s,
            )
            self._transport.abort()
        else:
            self.start()
