"""SIGTERM before a command handles it: process 1 of a container has no default for it."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Final

TERMINATED: Final = 143  # what a shell reports for SIGTERM


class Terminated(SystemExit):
    """SIGTERM came; asyncio lets no other exception of a handler through."""


def end_on_sigterm() -> None:
    """Raise Terminated on SIGTERM, in the main thread."""
    signal.signal(signal.SIGTERM, _end)


def _end(_number: int, _frame: FrameType | None) -> None:
    raise Terminated(TERMINATED)
