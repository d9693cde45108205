"""Times between the tokens of one choice."""

from __future__ import annotations

from bisect import bisect_left
from time import perf_counter

INTER_TOKEN_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1)


class InterTokenLatencies:
    """Times between the tokens of one choice, sorted into buckets as they come.

    `counts[i]` of them were at most INTER_TOKEN_BUCKETS_S[i] seconds; the last count is of longer
    ones. This runs once for every event of every stream: no locks, no labels, no allocation.
    """

    __slots__ = ("counts", "first_at", "last_at")

    def __init__(self) -> None:
        self.counts = [0] * (len(INTER_TOKEN_BUCKETS_S) + 1)
        self.first_at = 0.0  # 0: no token yet
        self.last_at = 0.0

    def note(self, num_tokens: int) -> None:
        """Count an event's tokens, assumed to be evenly spaced since the previous event."""
        now = perf_counter()
        last, self.last_at = self.last_at, now
        if not last:
            self.first_at = now
            return
        gap_s = now - last if num_tokens == 1 else (now - last) / (num_tokens or 1)
        self.counts[bisect_left(INTER_TOKEN_BUCKETS_S, gap_s)] += num_tokens

    @property
    def total_s(self) -> float:
        return self.last_at - self.first_at
