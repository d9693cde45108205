"""What an engine has to compute before a first token, and how long that takes by the last ones.

Seconds are taken to be a constant plus a price for each token ahead, fitted by least squares: a
short prompt waits for a step, a long one for as many as it fills. With little difference between
the prompts the line is bent towards the origin, where it has to go if nothing else is known. As a
bound is to hold for more than half of the requests, what is expected is the line and twice the mean
error, as for the retransmission timer of TCP (RFC 6298).
"""

from __future__ import annotations

from typing import Final

_MEMORY: Final = 0.9  # what the past still counts at the next first token
MIN_SAMPLES: Final = 3  # before that nothing is expected
_NUM_ERRORS: Final = 2
_MOST: Final = 4.0  # times what was expected: one long pause is not the pace
_PRIOR: Final = 0.1  # weight of the line through the origin, against a spread of once the mean


class Pace:
    """Seconds to a first token, by the tokens to be computed before it."""

    def __init__(self) -> None:
        self._num_samples = 0
        # Fading sums over first tokens.
        self._weight = self._seconds = self._tokens = self._squares = self._products = 0.0
        self._error = 0.0  # fading mean, as a share of what was expected

    @property
    def is_known(self) -> bool:
        """Whether there were enough first tokens to expect anything."""
        return self._num_samples >= MIN_SAMPLES

    def note(self, seconds: float, num_tokens: float) -> None:
        """Count a first token that came after so many seconds, behind so many tokens (above 0)."""
        if self.is_known:
            seconds = min(seconds, _MOST * self.expected_s(num_tokens))
        if self._num_samples and (line_s := self._line_s(num_tokens)) > 0:
            error = min(abs(seconds - line_s) / line_s, 1.0)
            self._error += (error - self._error) * (1 - _MEMORY)
        self._num_samples += 1
        self._weight = _MEMORY * self._weight + 1
        self._seconds = _MEMORY * self._seconds + seconds
        self._tokens = _MEMORY * self._tokens + num_tokens
        self._squares = _MEMORY * self._squares + num_tokens**2
        self._products = _MEMORY * self._products + num_tokens * seconds

    def expected_s(self, num_tokens: float) -> float:
        """Seconds in which nearly all come behind so many tokens; 0 while nothing is known."""
        return self._line_s(num_tokens) * (1 + _NUM_ERRORS * self._error) if self.is_known else 0.0

    def _line_s(self, num_tokens: float) -> float:
        mean_s, mean = self._seconds / self._weight, self._tokens / self._weight
        variance = self._squares / self._weight - mean**2
        covariance = self._products / self._weight - mean * mean_s
        slope = (covariance + _PRIOR * mean * mean_s) / (variance + _PRIOR * mean**2)
        slope = min(max(slope, 0.0), mean_s / mean)
        return mean_s + slope * (num_tokens - mean)


class Ahead:
    """Counts requests that an engine has and that have no token yet, by priority."""

    def __init__(self) -> None:
        self.num_left = 0  # that will never have a token: what was counted with them is not so
        self._counts: dict[int, tuple[int, int]] = {}  # requests, tokens of their prompts
        self._since_s = 0.0

    def of(self, priority: int) -> tuple[int, int]:
        """How many requests, and prompt tokens of them, are as urgent as this priority or more."""
        counts = [count for p, count in self._counts.items() if p <= priority]
        return sum(count[0] for count in counts), sum(count[1] for count in counts)

    def since_s(self, now_s: float) -> float:
        """Since when the engine works on what is counted, or would on what is added now."""
        return self._since_s if self._counts else now_s

    def enter(self, priority: int, num_tokens: int, now_s: float) -> None:
        """Count a request in."""
        self._since_s = self.since_s(now_s)
        self._count(priority, 1, num_tokens)

    def begin(self, priority: int, num_tokens: int, now_s: float) -> None:
        """Count out a request that has its first token: now it is the turn of the next."""
        self._count(priority, -1, -num_tokens)
        self._since_s = now_s

    def leave(self, priority: int, num_tokens: int, now_s: float) -> None:
        """Count out a request that will have none."""
        self.begin(priority, num_tokens, now_s)
        self.num_left += 1

    def _count(self, priority: int, num_requests: int, num_tokens: int) -> None:
        requests, tokens = self._counts.pop(priority, (0, 0))
        if requests + num_requests:
            self._counts[priority] = (requests + num_requests, tokens + num_tokens)
