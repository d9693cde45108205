"""How long the requests of an engine wait from one token to the next."""

from __future__ import annotations

from collections import deque
from typing import Final

PERIODS: Final = 20  # that are looked at: heartbeats in which something ran
MEMORY_S: Final = 30.0
LEAST_TOKENS: Final = 16
LEAST_S: Final = 2.0  # of all requests together, if there are fewer tokens


class TokenPace:
    """The mean time per token of what ran lately, in the engine's own process."""

    def __init__(self, now_s: float) -> None:
        self.num_tokens = 0  # of this period; the first of each request is not one of them
        self._num_running = 0
        self._waited_s = 0.0
        self._at_s = now_s
        self._periods: deque[tuple[float, float, int]] = deque(maxlen=PERIODS)

    def begin(self, now_s: float) -> None:
        """A request has its first token."""
        self._advance(now_s)
        self._num_running += 1
        self.num_tokens -= 1

    def end(self, now_s: float) -> None:
        self._advance(now_s)
        self._num_running -= 1

    def seconds_per_token(self, now_s: float) -> float | None:
        """End a period; None before there is enough to tell."""
        self._advance(now_s)
        periods = self._periods
        if self._waited_s:
            periods.append((now_s, self._waited_s, self.num_tokens))
            self._waited_s, self.num_tokens = 0.0, 0
        while periods and periods[0][0] < periods[-1][0] - MEMORY_S:
            periods.popleft()
        waited_s = sum(period[1] for period in periods)
        num_tokens = sum(period[2] for period in periods)
        if num_tokens < LEAST_TOKENS and waited_s < LEAST_S:
            return None
        return waited_s / max(num_tokens, 1)

    def _advance(self, now_s: float) -> None:
        self._waited_s += self._num_running * (now_s - self._at_s)
        self._at_s = now_s
