"""What is done where the system starts no more threads or processes.

Limits on them (a container's pids limit, `ulimit -u`) and a lack of memory for stacks look alike.
"""

from __future__ import annotations

import asyncio
import errno
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Final

NO_THREAD: Final = (
    "the system starts no more threads or processes for this server; try again later, or raise the "
    "limit (docker run --pids-limit, ulimit -u)"
)
_TEXT: Final = "can't start new thread"  # Python has no class for it
_MOST: Final = min(32, (os.cpu_count() or 1) + 4)  # as asyncio's own


class Threads(ThreadPoolExecutor):
    """A pool that makes do with the threads it has where the system gives it no more.

    The first one is started at once: without any, nothing could be done.
    """

    def __init__(self, most: int = _MOST, name: str = "work") -> None:
        super().__init__(most, name)
        self.submit(int).result()

    def _adjust_thread_count(self) -> None:
        try:
            super()._adjust_thread_count()
        except RuntimeError as error:
            if not self._threads or not lacks_threads(error):
                raise


def make_do() -> None:
    """Have the running event loop's own work done by such a pool; raises RuntimeError."""
    asyncio.get_running_loop().set_default_executor(Threads())


def lacks_threads(error: BaseException) -> bool:
    """Whether it says that no thread, or no process, could be started."""
    if isinstance(error, RuntimeError):
        return _TEXT in str(error)
    return isinstance(error, OSError) and error.errno == errno.EAGAIN
