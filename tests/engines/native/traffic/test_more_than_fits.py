"""Agents whose contexts together are larger than the GPU's memory, simulated."""

from __future__ import annotations

import pytest

from tests.engines.native.scheduling.simulation import Record, Simulation, quantile, random_tokens


def agents(
    simulation: Simulation, num: int, context: int, turns: int, new: int = 1500
) -> list[Record]:
    """Each asks again half a second after it was answered; the requests of later turns."""
    later: list[Record] = []

    def ask(number: int, turn: int, tokens: list[int]) -> None:
        tokens = tokens + random_tokens(1000 * (number + 1) + turn, new)

        def then(tokens: list[int]) -> None:
            if turn + 1 < turns:
                ask(number, turn + 1, tokens)

        record = simulation.ask(simulation.clock() + 0.5 * bool(turn), tokens, 20, then)
        later.extend([record] * bool(turn))

    for number in range(num):
        ask(number, 0, random_tokens(number, context))
    simulation.run()
    assert all(record.is_done for record in simulation.records)
    return later


def cached(records: list[Record]) -> float:
    """The share of their prompts that was found."""
    return sum(record.num_cached for record in records) / sum(r.prompt for r in records)


@pytest.mark.parametrize(
    ("gap_s", "turns"), [pytest.param(0.05, 20, marks=pytest.mark.slow), (0.02, 6)]
)
def test_later_turns_are_found_in_host_memory_and_gaps_stay_short(gap_s: float, turns: int) -> None:
    """A trace of up to 1,000 requests of 50 agents; the GPU holds a third of their blocks."""
    simulation = Simulation(max_token_gap_s=gap_s, num_blocks=115 * turns, num_host_blocks=6000)
    later = agents(simulation, 50, 2000, turns, new=300)
    assert len(simulation.records) == 50 * turns
    gaps = [gap for record in simulation.records for gap in record.gaps_s]
    assert quantile(gaps, 0.99) < 1.2 * gap_s
    assert cached(later) > 0.85
    ttfts = [record.ttft_s for record in later]
    assert (quantile(ttfts, 0.5), quantile(ttfts, 0.99)) < (0.15, 0.5)


def test_without_host_memory_the_same_agents_are_read_again() -> None:
    simulation = Simulation(max_token_gap_s=None, num_blocks=575)
    assert cached(agents(simulation, 50, 2000, 5, new=300)) < 0.4


def test_prompts_that_are_read_together_do_not_take_each_others_blocks() -> None:
    """There is room for seven of sixteen: the others wait."""
    simulation = Simulation(max_token_gap_s=0.05, num_blocks=4800)
    agents(simulation, 16, 40_000, 1)
    assert simulation.core.stats().num_preemptions == 0


def test_blocks_that_a_window_left_behind_go_first() -> None:
    """Three of twelve conversations run at a time; of all the others' the GPU holds what the
    next turn needs, and not twice as much."""
    simulation = Simulation(max_token_gap_s=0.05, num_blocks=5000, max_num_seqs=3)
    later = agents(simulation, 12, 20_000, 3)
    assert cached(later) > 0.9
