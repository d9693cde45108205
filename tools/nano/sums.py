"""Sums to 100: how they are asked for, and the steps by which nano adds."""

from __future__ import annotations

from dataclasses import dataclass

from tools.nano.first_words import in_words
from tools.nano.words import Words

_MOST = 100
_SMALL, _SMALL_SHARE = 20, 0.3  # what people try first
_IN_WORDS_SHARE = 0.12


@dataclass(frozen=True, slots=True)
class Sum:
    """A sum as it is asked for, its steps and its result."""

    said: str
    steps: str
    result: str


def draw_sum(words: Words, form: str) -> Sum:
    """Draw two numbers for one of the forms."""
    rng = words.rng
    total = rng.randint(0, _SMALL if rng.random() < _SMALL_SHARE else _MOST)
    a = rng.randint(0, total)
    b = total - a
    if " + " not in form and "=" not in form and total < _MOST and rng.random() < _IN_WORDS_SHARE:
        asked = {"a": in_words(a), "b": in_words(b)}
    else:
        asked = {"a": str(a), "b": str(b)}
    said = form.format(**asked, c=total, n=words.noun() if "{n}" in form else "")
    return Sum(said, _steps(a, b), f"{a} + {b} = {total}")


def _steps(a: int, b: int) -> str:
    """Add the tens, then the ones, then both: each step is one of a hundred or two."""
    tens, ones = a // 10 * 10 + b // 10 * 10, a % 10 + b % 10
    return (
        f"{a // 10 * 10} + {b // 10 * 10} = {tens}, {a % 10} + {b % 10} = {ones},"
        f" {tens} + {ones} = {a + b}."
    )
