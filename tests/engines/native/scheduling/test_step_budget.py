"""How much of prompts runs beside streams, on a simulated clock with the costs of an H200."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engines.native.step_costs import CostTable, StepCosts, StepWork
from tests.engines.native.scheduling.simulation import (
    Record,
    Simulation,
    h200,
    quantile,
    random_tokens,
)

GAP_S = 0.05


def streams(simulation: Simulation, num: int, answer: int = 400) -> list[Record]:
    return [simulation.ask(0.0, 128, answer) for _ in range(num)]


def gaps_of(records: list[Record]) -> list[float]:
    return [gap for record in records for gap in record.gaps_s]


@pytest.mark.parametrize(
    ("gap_s", "num_tokens"),
    [(0.02, 30_000), pytest.param(0.05, 100_000, marks=pytest.mark.heavy)],
)
def test_streams_keep_their_gap_beside_a_long_prompt(gap_s: float, num_tokens: int) -> None:
    simulation = Simulation(max_token_gap_s=gap_s)
    beside = streams(simulation, 32)
    long = simulation.ask(0.5, num_tokens, 4)
    simulation.run()
    assert quantile(gaps_of(beside), 0.99) <= 0.03
    assert max(gaps_of(beside)) <= 1.05 * gap_s
    assert long.is_done
    assert long.ttft_s < 12


@pytest.mark.heavy
def test_without_a_target_prompts_are_read_in_the_largest_chunks() -> None:
    simulation = Simulation(max_token_gap_s=None)
    streams(simulation, 32)
    simulation.ask(0.5, 100_000, 4)
    simulation.run()
    assert sum(work.tokens > 8000 for work in simulation.backend.works) >= 12


@pytest.mark.heavy
def test_a_chunk_is_smaller_the_deeper_it_stands() -> None:
    simulation = Simulation(max_token_gap_s=GAP_S)
    streams(simulation, 32, 600)
    simulation.ask(0.1, 120_000, 4)
    simulation.run()
    chunks = [work.tokens for work in simulation.backend.works if work.rows and work.tokens]
    assert chunks[0] >= 1024
    assert 64 <= chunks[-2] <= 512


def test_with_nothing_decoding_a_prompt_is_read_in_the_largest_chunks() -> None:
    simulation = Simulation(max_token_gap_s=GAP_S)
    simulation.ask(0.0, 30_000, 1)
    simulation.run()
    assert [work.tokens for work in simulation.backend.works] == [8192, 8192, 8192, 5424]


@pytest.mark.heavy
def test_a_short_prompt_does_not_wait_behind_a_long_one() -> None:
    simulation = Simulation(max_token_gap_s=GAP_S)
    long = [simulation.ask(0.0, 100_000, 4) for _ in range(3)]
    short = [simulation.ask(0.3 * i, 200, 20) for i in range(1, 40)]
    simulation.run()
    assert quantile([record.ttft_s for record in short], 0.9) < 0.5
    assert all(record.is_done for record in long + short)


@pytest.mark.heavy
def test_turns_of_agents_do_not_wait_for_the_first_prompts_of_others() -> None:
    """24 agents: 20,000 tokens, then turns of 1,500 more, half a second after each answer."""
    simulation = Simulation(max_token_gap_s=GAP_S)
    turns: list[Record] = []

    def turn(number: int, num_left: int) -> Callable[[list[int]], None]:
        def then(tokens: list[int]) -> None:
            more = [*tokens, *random_tokens(100 * number + num_left, 1500)]
            following = turn(number, num_left - 1) if num_left > 1 else None
            turns.append(simulation.ask(simulation.clock() + 0.5, more, 100, following))

        return then

    first = [simulation.ask(0.1 * n, 21_500, 100, turn(n, 2)) for n in range(24)]
    simulation.run()
    assert all(record.num_cached >= 20_000 for record in turns)
    assert quantile([record.ttft_s for record in turns], 0.95) < 1.5
    assert max(record.ttft_s for record in first) < 20
    assert max(gaps_of(first + turns)) <= 3 * GAP_S  # while prompts have waited for seconds


@pytest.mark.heavy
def test_a_long_prompt_goes_on_beside_a_stream_of_short_ones() -> None:
    simulation = Simulation(max_token_gap_s=GAP_S)
    for i in range(600):  # more than the device can read beside others
        simulation.ask(i / 60, 2000, 2)
    long = simulation.ask(1.0, 30_000, 4)
    simulation.run(until_s=10)
    assert long.is_done
    assert long.ttft_s < 4


@pytest.mark.heavy
def test_prompts_go_on_while_streams_alone_take_longer_than_the_gap() -> None:
    simulation = Simulation(max_token_gap_s=0.004)
    streams(simulation, 32, 1000)
    long = simulation.ask(1.0, 10_000, 2)
    short = [simulation.ask(1.5 + i / 4, 100, 2) for i in range(5)]
    simulation.run()
    assert long.is_done
    assert max(record.ttft_s for record in short) < 0.2


@pytest.mark.heavy
@pytest.mark.parametrize("factor", [0.4, 2.5])
def test_costs_that_were_measured_wrong_are_corrected_while_serving(factor: float) -> None:
    simulation = Simulation(max_token_gap_s=GAP_S, believed=h200(factor))
    beside = streams(simulation, 32, 1500)
    for i in range(4):
        simulation.ask(0.5 + 5 * i, 40_000, 2)
    simulation.run()
    late = [gap for record in beside for gap in record.gaps_s[-300:]]
    assert max(late) <= 1.15 * GAP_S
    works = [work for work in simulation.backend.works if work.rows and work.tokens]
    assert max(work.tokens for work in works[-40:]) >= 512  # and no smaller than has to be


def test_a_burst_with_one_prefix_computes_it_once() -> None:
    simulation = Simulation(max_token_gap_s=GAP_S)
    prefix = random_tokens(1, 20_000)
    for i in range(20):
        simulation.ask(0.0, [*prefix, *random_tokens(100 + i, 300)], 4)
    other = simulation.ask(0.0, 300, 4)
    simulation.run()
    assert all(record.is_done for record in simulation.records)
    assert sum(work.tokens for work in simulation.backend.works) < 20_000 + 21 * 400
    assert other.ttft_s < 0.5


def test_who_waits_for_a_prefix_goes_on_when_it_never_comes() -> None:
    simulation = Simulation(max_token_gap_s=GAP_S)
    prefix = random_tokens(1, 20_000)
    for i in range(3):
        simulation.ask(0.0, [*prefix, *random_tokens(100 + i, 300)], 4)
    simulation.run(until_s=0.05)
    scheduler = simulation.core.scheduler
    assert len(scheduler.waiting) == 2
    scheduler.remove(next(iter(scheduler.running)))
    simulation.run()
    assert [record.is_done for record in simulation.records] == [False, True, True]
    assert not scheduler.has_work
    scheduler.blocks.check_integrity()


def test_between_the_sizes_of_a_table_are_lines() -> None:
    table = CostTable({64: 1.0, 128: 2.0})
    assert [table.seconds(n) for n in (0, 1, 64, 96, 128, 256)] == [0, 1, 1, 1.5, 2, 4]


def test_the_longest_chunk_within_a_budget() -> None:
    costs = h200()
    row = StepWork(rows=32)
    assert costs.most_tokens(row, 0, 8192, costs.seconds(row) + 0.0292) == 2208
    assert costs.most_tokens(row, 0, 700, 0.04) == 700
    assert costs.most_tokens(row, 100_000, 8192, 0.001) == 0


def test_a_deep_chunk_is_as_long_as_costs_nothing() -> None:
    costs = h200()
    assert costs.small_chunk(0, 8192) <= 128
    assert costs.small_chunk(120_000, 8192) >= 250
    assert costs.small_chunk(120_000, 50) == 50


def test_a_pause_hardly_changes_what_a_step_is_taken_to_cost() -> None:
    costs = h200()
    work = StepWork(rows=32, context=32_000)
    expected_s = costs.seconds(work)
    for _ in range(100):
        costs.note(work, expected_s)
    costs.note(work, 100 * expected_s)
    assert expected_s <= costs.seconds(work) < 1.11 * expected_s


def test_attention_comes_in_rounds() -> None:
    costs = h200()
    assert costs.chunk(100_000, 64).pairs == pytest.approx(
        costs.chunk(100_000, 384).pairs, rel=0.01
    )
    one, two = (costs.seconds(costs.chunk(100_000, n)) for n in (384, 385))
    assert two > 1.5 * one


def test_costs_survive_json() -> None:
    values = h200().as_dict()
    again = StepCosts.from_dict(values)
    assert again.as_dict() == values


@pytest.mark.heavy
def test_prompts_that_wait_long_lengthen_no_gap_of_what_is_more_urgent() -> None:
    def longest_s(priority: int) -> float:
        simulation = Simulation(max_token_gap_s=GAP_S)
        beside = streams(simulation, 4, 150)
        bulk = [simulation.ask(0.1, 4000, 4, priority=priority) for _ in range(100)]
        simulation.run()
        assert all(record.is_done for record in bulk)
        return max(gaps_of(beside))

    assert longest_s(1) < 1.05 * GAP_S < 1.2 * GAP_S < longest_s(0)


@pytest.mark.heavy
def test_a_short_prompt_passes_long_ones_that_wait_in_the_engine() -> None:
    """And costs them no more than it computes."""

    def run(num_chats: int) -> tuple[float, list[float]]:
        simulation = Simulation(max_token_gap_s=0.05)
        long = [simulation.ask(0.0, 4000, 8) for _ in range(60)]
        chats = [simulation.ask(0.5 + n / 4, 200, 8) for n in range(num_chats)]
        simulation.run()
        return max(record.token_s[-1] for record in long), [chat.ttft_s for chat in chats]

    alone_s, _ = run(0)
    beside_s, ttfts = run(8)
    assert max(ttfts) < 0.3
    assert beside_s < 1.05 * alone_s
