"""Exit codes of signals; SIGTERM before a command handles it.

Process 1 of a container has no default for SIGTERM. The image blocks the signal until it is handled
(tools/packaging/entrypoint).
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Final

FORCED: Final = 130  # what a shell reports for Ctrl-C
TERMINATED: Final = 143  # and for SIGTERM


class Terminated(SystemExit):
    """SIGTERM came; asyncio lets no other exception of a handler through."""


def end_on_sigterm() -> None:
    """Raise Terminated on SIGTERM; only the main thread can, and others need not."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _end)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM,))


def _end(_number: int, _frame: FrameType | None) -> None:
    raise Terminated(TERMINATED)
