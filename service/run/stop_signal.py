"""Ctrl-C and SIGTERM: the first asks for a clean end, the second for the end at once."""

from __future__ import annotations

import asyncio
import logging
import signal
from typing import Any

log = logging.getLogger(__name__)


class StopSignal:
    """Takes the signals of the running loop over until it is closed."""

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self.forced = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        if self.requested.is_set():
            log.warning("Quitting at once.")
            self.forced.set()
        self.requested.set()


async def first_of(awaited: asyncio.Event, task: asyncio.Future[Any]) -> bool:
    """Return whether the event came before the task ended; the task is left running then."""
    waiting = asyncio.ensure_future(awaited.wait())
    try:
        await asyncio.wait((waiting, task), return_when=asyncio.FIRST_COMPLETED)
        return not task.done()
    finally:
        waiting.cancel()
