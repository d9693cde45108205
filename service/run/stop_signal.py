"""Ctrl-C, SIGTERM, SIGQUIT and a closed terminal: the first asks for a clean end, the second for
the end at once. Signals that mean nothing here end nothing."""

from __future__ import annotations

import asyncio
import logging
import signal
from typing import Any, Final

# By default each ends a process at once, with all its streams.
_MEANINGLESS: Final = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM)

log = logging.getLogger(__name__)


class StopSignal:
    """Takes the signals of the running loop over until it is closed."""

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self.forced = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
            loop.add_signal_handler(number, self._on_signal)
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as under nohup
            loop.add_signal_handler(signal.SIGHUP, self._on_signal)
        for number in _MEANINGLESS:
            loop.add_signal_handler(number, self._on_meaningless, number)

    def _on_meaningless(self, number: signal.Signals) -> None:
        log.warning("%s is ignored by this server.", number.name)

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
