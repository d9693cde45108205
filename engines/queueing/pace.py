"""How fast a queue moves, and so how long a new request would wait in it.

Work is counted in tokens, as the queue counts it. The pace is the work that left the queue over
the time in which requests had to wait, both fading: prefill, decoding, memory and other workers all
show in it. The pace is wrong when the kind of requests changes. So an expected wait is never more
than twice what the oldest request has waited: a burst is not refused for what came before it.
"""

from __future__ import annotations

import math
from typing import Final

from engines.base import NO_WAIT, ExpectedWait

_MEMORY_S: Final = 10.0  # after which what was seen counts a third
_DOUBT: Final = 1.25  # factor by which a wait may be shorter or longer
_MOST_TIMES_SEEN: Final = 2.0
_MOST_RETRY_S: Final = 60


def retry_after_s(wait: ExpectedWait, limit_s: float) -> int:
    """Seconds after which a request would be served within the limit, if no others come."""
    return min(max(math.ceil(_DOUBT * wait.likely_s - limit_s), 1), _MOST_RETRY_S)


class Pace:
    """Work per second of a queue; `now_s` never falls."""

    def __init__(self) -> None:
        self._work = self._busy_s = 0.0  # fading sums
        self._now_s = -math.inf
        self._is_busy = False

    def advance(self, now_s: float, *, is_busy: bool) -> None:
        """Note the time, and whether from now on somebody would have to wait."""
        if self._now_s > -math.inf:
            passed_s = now_s - self._now_s
            left = math.exp(-passed_s / _MEMORY_S)
            self._work *= left
            self._busy_s = self._busy_s * left + (passed_s if self._is_busy else 0.0)
        self._now_s, self._is_busy = now_s, is_busy

    def note(self, work: float) -> None:
        """Count work that leaves the queue."""
        self._work += work

    def expected(self, work: float, oldest_s: float) -> ExpectedWait:
        """How long work takes to leave the queue, if the oldest has waited `oldest_s`."""
        if not oldest_s or not work:
            return NO_WAIT
        most_s = _MOST_TIMES_SEEN * oldest_s
        if not self._work:
            return ExpectedWait(most_s, most_s)
        seconds = work * self._busy_s / self._work
        return ExpectedWait(seconds, min(seconds / _DOUBT, most_s))


class Running:
    """A fading mean of a ratio of counts."""

    def __init__(self, share: float, weight: float, memory: float) -> None:
        """`share` is assumed with so much weight; each count leaves `memory` of those before."""
        self._part, self._whole, self._memory = share * weight, weight, memory

    @property
    def value(self) -> float:
        return self._part / self._whole

    def note(self, part: float, whole: float) -> None:
        self._part = self._memory * self._part + part
        self._whole = self._memory * self._whole + whole
