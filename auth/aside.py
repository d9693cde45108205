"""Work that may never end, in a thread that nobody has to wait for.

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


async def run_aside(work: Callable[[], R]) -> R:
    """Run work in a thread of its own; gives what it returns, raises what it raises."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[R] = loop.create_future()

    def tell(result: R | None, error: Exception | None) -> None:
        if done.done():  # nobody waits any more
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

    threading.Thread(target=run, name="aside", daemon=True).start()
    return await done
