"""Something that requests can do without has failed: it is logged once, and left alone for some
seconds where each try would wait."""

from __future__ import annotations

import logging
import time
from typing import Final

log = logging.getLogger("harmonium")

PAUSE_S: Final = 5.0  # after a failure, before it is asked again
QUIET_S: Final = 60.0  # without a failure: the next one is another fault


class OutageGuard:
    """Leaves a failed server alone for some seconds, so that one request waits for a time-out and
    not each."""

    def __init__(self, what: str, consequence: str) -> None:
        self._what = what
        self._consequence = consequence
        self._until = 0.0

    @property
    def is_closed(self) -> bool:
        """Whether the store is not tried at the moment."""
        return time.monotonic() < self._until

    def close(self, error: Exception) -> None:
        """Note a failure; the log says so once in a while."""
        self._until = time.monotonic() + PAUSE_S
        name = type(error).__name__
        log.error("%s failed (%s: %s): %s", self._what, name, error, self._consequence)


class FailureLog:
    """Logs the first of many failures of one fault, which may be any number a second."""

    def __init__(self) -> None:
        self._failed_at_s = -QUIET_S

    def failed(self, message: str, *args: object) -> None:
        """Note a failure; it is an ERROR in the log if there was none for QUIET_S."""
        now_s = time.monotonic()
        is_first, self._failed_at_s = now_s - self._failed_at_s >= QUIET_S, now_s
        log.log(logging.ERROR if is_first else logging.DEBUG, message, *args)
