"""The goals differ in their longest gap between tokens, and cost little where nobody is late."""

from __future__ import annotations

import math
import random
from functools import cache

import pytest

from tests.engines.native.scheduling.simulation import Simulation, quantile

GAPS_S = {"latency": 0.02, "balanced": 0.05, "throughput": None}


@cache
def served(goal: str) -> Simulation:
    """20 requests a second for 15 s, prompts of 400 tokens and answers of 100 at the median, and
    one prompt of 30,000 amid them."""
    simulation, chance = Simulation(max_token_gap_s=GAPS_S[goal]), random.Random(1)
    due_s = 0.0
    while due_s < 15.0:
        num_prompt = min(8192, max(16, int(chance.lognormvariate(math.log(400), 0.9))))
        num_answer = min(512, max(8, int(chance.lognormvariate(math.log(100), 0.7))))
        simulation.ask(due_s, num_prompt, num_answer)
        due_s += chance.expovariate(20)
    simulation.ask(5.0, 30_000, 20)
    simulation.run()
    assert all(record.is_done for record in simulation.records)
    return simulation


@pytest.mark.parametrize("goal", ["latency", "balanced"])
def test_no_gap_is_longer_than_the_goal_has_it(goal: str) -> None:
    gap_s = GAPS_S[goal]
    assert gap_s is not None
    assert max(gap for record in served(goal).records for gap in record.gaps_s) < 1.1 * gap_s


def test_without_a_target_the_long_prompt_makes_long_gaps() -> None:
    gaps = [gap for record in served("throughput").records for gap in record.gaps_s]
    assert max(gaps) > 0.1


@pytest.mark.heavy
def test_a_burst_takes_hardly_longer_with_a_target() -> None:
    """400 requests at once, 128 tokens in and 128 out."""
    seconds = {}
    for goal, gap_s in GAPS_S.items():
        simulation = Simulation(max_token_gap_s=gap_s)
        for _ in range(400):
            simulation.ask(0.0, 128, 128)
        simulation.run()
        seconds[goal] = simulation.clock()
    assert seconds["balanced"] < 1.05 * seconds["throughput"]
    assert seconds["latency"] < 1.25 * seconds["throughput"]


def test_first_tokens_come_soon_at_every_goal() -> None:
    for goal in GAPS_S:
        ttfts = [record.ttft_s for record in served(goal).records if record.prompt < 30_000]
        assert quantile(ttfts, 0.5) < 0.05
        assert quantile(ttfts, 0.99) < 0.4
