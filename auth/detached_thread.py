"""Work that may never end, in a thread that no caller has to wait for.

asyncio's own threads are joined when the process ends: one that hangs on a dead file system would
keep it from ending.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

R = TypeVar("R")


async def run_detached(work: Callable[[], R]) -> R:
    """Run work in its own thread; returns its result, raises its error."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[R] = loop.create_future()

    def tell(result: R | None, error: Exception | None) -> None:
        if done.done():  # no caller waits any more
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result: R | None = None
        error: Exception | None = None
        try:
            result = work()
        except Exception as caught:
            error = caught
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(tell, result, error)

    threading.Thread(target=run, name="detached", daemon=True).start()
    return await done
