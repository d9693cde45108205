"""A clock for the age of what is stored: it advances as time does, whatever the wall clock shows.

It never goes back, and forward by no more than passed while this process looked on, or a day. So a
wall clock that is years ahead for a while costs no response. What no process counted, while
none ran, counts as a day at most: responses last longer then.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

DAY_S: Final = 24 * 3600.0
KEPT_EVERY_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class ClockReading:
    """What the clocks showed at one time: the wall's and ours."""

    wall: float
    age: float


class AgeClock:
    """The clock of one process; several meet at the reading that their store keeps."""

    def __init__(
        self, wall: Callable[[], float], steady: Callable[[], float] = time.monotonic
    ) -> None:
        self._wall, self._steady = wall, steady
        self._last: ClockReading | None = None  # of this process, at `_last_at` of its steady clock
        self._last_at = self._kept_at = steady()

    @property
    def is_due(self) -> bool:
        """Whether the reading that is kept is to be read and written again."""
        return self._last is None or self._steady() - self._kept_at >= KEPT_EVERY_S

    def now(self) -> float:
        """The time of our clock; only after meet()."""
        assert self._last is not None
        return self._step(self._last)

    def meet(self, kept: ClockReading | None) -> ClockReading:
        """The reading to keep, after the kept one."""
        if self._last is None:
            wall = self._wall()  # a store of an earlier release counts by it
            self._step(kept or ClockReading(wall, wall))
        else:
            self._step(self._last, least=0.0 if kept is None else kept.age)
        assert self._last is not None
        self._kept_at = self._last_at
        return self._last

    def _step(self, since: ClockReading, least: float = 0.0) -> float:
        wall, steady = self._wall(), self._steady()
        passed = min(max(wall - since.wall, 0.0), max(DAY_S, steady - self._last_at))
        self._last, self._last_at = ClockReading(wall, max(since.age + passed, least)), steady
        return self._last.age
