"""Something that requests can do without has failed: for some seconds it is left alone."""

from __future__ import annotations

import logging
import time
from typing import Final

log = logging.getLogger("harmonium")

PAUSE_S: Final = 5.0  # after a failure, before it is asked again


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
