"""The model's files are fetched in a thread, while the API answers that the server is not ready."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Final

from profiles.download import progress
from service.run.messages import Download

log = logging.getLogger("harmonium")

LOOK_S: Final = 1.0
_END_S: Final = 3.0  # for the threads to receive their next bytes


class Obtaining:
    """One run of `obtain` in a thread of its own, watched by the loop."""

    def __init__(self, obtain: Callable[[], None], model: str, folder: str) -> None:
        """`folder`: where the files are stored."""
        self._obtain = obtain
        self._model = model
        self._folder = folder
        self.download: Download | None = None  # while it runs

    async def run(self, on_change: Callable[[], None]) -> None:
        """Return when all files are there; raises what `obtain` raises.

        Cancelled, it ends the download and says what is kept.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        threading.Thread(target=self._work, args=(done,), name="obtain", daemon=True).start()
        try:
            while not done.done():
                self.download = self._look()
                on_change()
                await asyncio.wait((done,), timeout=LOOK_S)
            done.result()
        except asyncio.CancelledError:
            progress.stop_all()
            await asyncio.wait((done,), timeout=_END_S)
            log.info(
                "The download was stopped. The downloaded part is kept in %s. Start again to "
                "continue.",
                self._folder,
            )
            raise
        finally:
            if done.done() and not done.cancelled():
                done.exception()
            self.download = None
            on_change()

    def _work(self, done: asyncio.Future[None]) -> None:
        error: BaseException | None = None
        try:
            self._obtain()
        except BaseException as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop has ended
            done.get_loop().call_soon_threadsafe(_settle, done, error)

    def _look(self) -> Download:
        running = progress.running()
        if running is None:
            return Download(f"checking the files of {self._model}", 0, 0)
        return Download(f"downloading {running.line()}", running.have_bytes, running.total_bytes)


def _settle(done: asyncio.Future[None], error: BaseException | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
