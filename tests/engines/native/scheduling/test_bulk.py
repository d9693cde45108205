"""Bulk beside requests whose clients wait, on the simulated device. That no token changes, and that
nothing waits for ever in any mix, is in test_scheduler.py and in traffic/test_bulk.py."""

from __future__ import annotations

import pytest

from engines.base import LOWEST_PRIORITY
from tests.engines.native.scheduling.simulation import Simulation, random_tokens

pytestmark = pytest.mark.heavy  # simulates traffic

BULK = LOWEST_PRIORITY
NUM_SEQS = 64
GAP_S = 0.05
SHORT_S = GAP_S / 4


def full_of_bulk(num: int = NUM_SEQS - 4, answer: int = 600) -> Simulation:
    simulation = Simulation(max_token_gap_s=GAP_S, max_num_seqs=NUM_SEQS)
    for n in range(num):
        simulation.ask(0.001 * n, 300, answer, priority=BULK)
    return simulation


def test_a_prompt_whose_client_waits_is_read_in_a_step_without_bulk() -> None:
    simulation = full_of_bulk()
    chat = simulation.ask(2.0, 200, 3)
    simulation.run()
    assert chat.is_done
    assert [work.rows for work in simulation.backend.works if work.tokens == 200] == [0]


def test_while_such_requests_come_the_next_waits_for_a_part_of_a_short_step() -> None:
    alone = Simulation(max_token_gap_s=GAP_S)
    expected = alone.ask(2.0, 200, 3)
    alone.run()
    simulation = full_of_bulk()
    simulation.ask(2.0, 200, 3)
    chats = [simulation.ask(3.0 + 0.517 * n, 200, 3) for n in range(6)]
    simulation.run()
    assert max(chat.ttft_s for chat in chats) < expected.ttft_s + SHORT_S


def test_bulk_alone_is_served_as_others_are() -> None:
    def ended_s(priority: int, chat: bool) -> float:
        simulation = Simulation(max_token_gap_s=GAP_S, max_num_seqs=NUM_SEQS)
        if chat:  # so long ago that its tokens are no reason any more
            simulation.ask(0.0, 200, 3)
        records = [simulation.ask(12.0, 300, 40, priority=priority) for n in range(100)]
        simulation.run()
        return max(record.token_s[-1] for record in records)

    assert ended_s(BULK, chat=False) == ended_s(BULK, chat=True) == ended_s(0, chat=False)


def test_bulk_ends_although_prompts_never_stop_coming() -> None:
    simulation = Simulation(max_token_gap_s=GAP_S, max_num_seqs=NUM_SEQS)
    bulk = [simulation.ask(0.0, 300, 40, priority=BULK) for _ in range(10)]
    chats = 0

    def ask_again(_: list[int]) -> None:
        nonlocal chats
        chats += 1
        if not all(record.is_done for record in bulk):
            simulation.ask(simulation.clock(), 2000, 1, ask_again)

    for _ in range(6):
        simulation.ask(0.0, 2000, 1, ask_again)
    simulation.run(until_s=200.0)
    assert all(record.is_done for record in bulk)
    assert chats > 200, "there was always a prompt to be read"


def test_nobody_waits_for_a_prefix_that_bulk_computes() -> None:
    prefix = random_tokens(5, 6400)
    simulation = full_of_bulk(num=30)
    simulation.ask(1.0, 200, 200)  # so that steps are short
    bulk = [simulation.ask(1.1, prefix + [n] * 64, 10, priority=BULK) for n in range(3)]
    chat = simulation.ask(1.11, prefix + [9] * 64, 10)
    simulation.run()
    assert chat.token_s[0] < min(record.token_s[0] for record in bulk)
