"""Traffic at the engine, on a simulated device and clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.engines.native.scheduling.simulation import Simulation
from tools.benchmarks.engine_traffic import Traffic, agents, beside, burst, poisson


def run(make: Callable[[], Traffic]) -> dict[str, Any]:
    simulation, traffic = Simulation(max_token_gap_s=0.05), make()
    clock = simulation.clock

    def sleep(seconds: float) -> None:
        clock.now_s += seconds

    traffic.run(simulation.core, clock, sleep)
    stats = simulation.core.stats()
    assert (stats.num_running, stats.num_waiting) == (0, 0)
    assert stats.num_free_kv_blocks == stats.num_kv_blocks
    return traffic.figures()


def test_agents_find_what_their_turns_before_left() -> None:
    found = run(lambda: agents(2, context=2000, turns=3, new=500))
    assert found["first turns"]["requests"] == 2
    assert found["later turns"]["requests"] == 4
    assert found["first turns"]["cached_share"] == 0
    assert found["later turns"]["cached_share"] > 0.7
    assert 0 < found["later turns"]["ttft_ms"]["p99"] < 200


def test_gaps_beside_a_prompt_are_those_while_it_is_read() -> None:
    found = run(lambda: beside(20_000, streams=4))
    assert 10 < found["streams"]["gap_ms"]["max"] < 55
    assert found["prompt"]["requests"] == 1
    assert found["seconds"] == pytest.approx(1 + found["prompt"]["ttft_ms"]["p50"] / 1000, rel=0.01)


@pytest.mark.parametrize("make", [lambda: poisson(10, 2.0), lambda: burst(20, 100, 30)])
def test_all_are_answered(make: Callable[[], Traffic]) -> None:
    group = run(make)["all"]
    assert group["requests"] >= 10
    assert group["ms_per_token"]["p50"] < 20
