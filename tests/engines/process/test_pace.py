"""The time per token of an engine, as its process measures it."""

from __future__ import annotations

import pytest

from engines.process.pace import TokenPace


def run(pace: TokenPace, from_s: float, num_tokens: int, seconds: float) -> None:
    """One request, whose first token comes at once."""
    pace.begin(from_s)
    pace.num_tokens += 1 + num_tokens
    pace.end(from_s + seconds)


def test_it_is_not_known_before_there_is_enough() -> None:
    pace = TokenPace(0.0)
    assert pace.seconds_per_token(1.0) is None
    run(pace, 1.0, 10, 1.0)
    assert pace.seconds_per_token(2.0) is None
    run(pace, 2.0, 10, 1.0)
    assert pace.seconds_per_token(3.0) == pytest.approx(0.1)


def test_requests_that_run_at_once_each_wait() -> None:
    pace = TokenPace(0.0)
    pace.begin(0.0)
    pace.begin(0.0)
    pace.num_tokens += 2 + 40
    assert pace.seconds_per_token(2.0) == pytest.approx(0.1)


def test_one_that_gives_nothing_is_slow() -> None:
    pace = TokenPace(0.0)
    pace.begin(0.0)
    pace.num_tokens += 1
    assert pace.seconds_per_token(10.0) == 10.0


def test_an_idle_engine_keeps_it_and_what_is_new_replaces_what_is_old() -> None:
    pace = TokenPace(0.0)
    run(pace, 0.0, 100, 20.0)
    for now_s in range(20, 600):
        assert pace.seconds_per_token(float(now_s)) == pytest.approx(0.2)
    run(pace, 600.0, 16, 0.32)
    assert pace.seconds_per_token(601.0) == pytest.approx(0.02)
