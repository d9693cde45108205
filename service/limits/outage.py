"""What a failing Redis means for limits: for some seconds it is not asked, and nobody waits."""

from __future__ import annotations

import logging
import time
from typing import Final

log = logging.getLogger("harmonium.limits")

TIMEOUT_S: Final = 1.0  # of one question to Redis
_PAUSE_S: Final = 5.0  # after a failure, before it is asked again


class Outage:
    """Remembers the last failure."""

    def __init__(self) -> None:
        self._until = 0.0

    @property
    def is_on(self) -> bool:
        """Whether Redis is left alone now."""
        return time.monotonic() < self._until

    def begin(self, error: Exception) -> None:
        """It has failed; the log says so once in a while."""
        self._until = time.monotonic() + _PAUSE_S
        log.error(
            "Redis fails (%s: %s): limits count for this process alone until it is back",
            type(error).__name__,
            error,
        )
