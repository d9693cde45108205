"""How long a first token takes, learnt from the last ones."""

from __future__ import annotations

import random

import pytest

from engines.pace import Pace


def test_nothing_is_expected_before_three_first_tokens() -> None:
    pace = Pace()
    for _ in range(2):
        pace.note(1, 100)
    assert pace.expected_s(100) == 0
    pace.note(1, 100)
    assert pace.expected_s(100) == pytest.approx(1)
    assert pace.expected_s(200) == pytest.approx(2)


def test_short_prompts_say_little_of_the_price_of_long_ones() -> None:
    """A step of 20 ms and half a millisecond a token."""
    pace, chance = Pace(), random.Random(1)
    for _ in range(100):
        num_tokens = chance.choice([5, 5, 5, 5, 5, 5, 800])
        pace.note(0.02 + 0.0005 * num_tokens, num_tokens)
    assert pace.expected_s(5) < 0.06
    assert 0.42 <= pace.expected_s(800) < 0.6


def test_nearly_all_come_in_the_time_that_is_expected() -> None:
    pace, chance, num_late = Pace(), random.Random(1), 0
    for _ in range(500):
        seconds = chance.uniform(0.6, 1.4)
        num_late += pace.is_known and seconds > pace.expected_s(900)
        pace.note(seconds, 900)
    assert num_late < 50
    assert pace.expected_s(900) < 2


def test_a_pause_is_not_the_pace_and_a_slow_engine_is() -> None:
    pace = Pace()
    for _ in range(10):
        pace.note(0.1, 100)
    pace.note(1000, 100)
    assert pace.expected_s(100) < 0.3
    for _ in range(20):
        pace.note(2, 100)
    assert pace.expected_s(100) > 1.8
