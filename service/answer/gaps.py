"""Times between the tokens of one choice, sorted into buckets as they come.

This runs once for every event of every stream: no locks, no labels, no allocation.
"""

from __future__ import annotations

from bisect import bisect_left
from time import perf_counter

GAP_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1)


class Gaps:
    """`counts[i]` gaps were at most GAP_S[i] seconds; the last count is of longer ones."""

    __slots__ = ("counts", "first_at", "last_at")

    def __init__(self) -> None:
        self.counts = [0] * (len(GAP_S) + 1)
        self.first_at = 0.0  # 0: no token yet
        self.last_at = 0.0

    def note(self, num_tokens: int) -> None:
        """An event brought so many tokens now; they came evenly since the one before."""
        now = perf_counter()
        last, self.last_at = self.last_at, now
        if not last:
            self.first_at = now
            return
        gap_s = now - last if num_tokens == 1 else (now - last) / (num_tokens or 1)
        self.counts[bisect_left(GAP_S, gap_s)] += num_tokens

    @property
    def total_s(self) -> float:
        """The sum of all gaps."""
        return self.last_at - self.first_at
