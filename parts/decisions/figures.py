"""Single numbers from the probabilities of an answer, as System One's servers define them."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum


def expected(probabilities: Sequence[float]) -> float:
    """The mean level, the first being 0."""
    return fsum(level * each for level, each in enumerate(probabilities))


def choice_confidence(probabilities: Sequence[float]) -> float:
    """How far the likeliest is above a guess: 0 where all are alike, 1 where it is certain."""
    num = len(probabilities)
    if num == 1:
        return 1.0
    return _within((num * max(probabilities) - 1) / (num - 1))


def score_confidence(probabilities: Sequence[float]) -> float:
    """1 less the mean distance from the likeliest level, in units of that of a guess."""
    num = len(probabilities)
    if num == 1:
        return 1.0
    top = probabilities.index(max(probabilities))
    distance = fsum(each * abs(level - top) for level, each in enumerate(probabilities))
    of_guess = fsum(abs(level - (num - 1) / 2) for level in range(num)) / num
    return _within(1 - distance / of_guess)


def _within(value: float) -> float:
    return min(max(value, 0.0), 1.0)
