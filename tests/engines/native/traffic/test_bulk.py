"""Bulk beside chat of one caller, on the simulated device."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.queueing.fair_queue import Entry
from engines.queueing.own_order import ByArrival, ShortestFirst
from tests.engines.native.scheduling.simulation import Clock, quantile, random_tokens
from tests.engines.native.traffic.queued import Order, Run, Told, serving, simulate
from tests.examples import examples

FIRST: Order = ByArrival[Entry[Run]]
SHORTEST: Order = ShortestFirst[Entry[Run]]


async def beside(clock: Clock, num_bulk: int, num_chats: int, order: Order) -> list[list[Told]]:
    """Prompts of 4,000 tokens at once, and from the first second on two short chats a second."""
    async with serving(clock, own_order=order) as client:
        bulk = [client.ask(random_tokens(n, 4000), 32) for n in range(num_bulk)]
        chats = [
            client.ask_at(1 + n / 2, random_tokens(1000 + n, 200), 50) for n in range(num_chats)
        ]
        answers = await asyncio.gather(*bulk, *chats)
        return [answers[:num_bulk], answers[num_bulk:]]


@pytest.mark.heavy
def test_chats_do_not_wait_for_bulk_of_their_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    bulk, chats = simulate(monkeypatch, lambda clock: beside(clock, 150, 12, SHORTEST))
    alone, _ = simulate(monkeypatch, lambda clock: beside(clock, 150, 0, SHORTEST))
    _, before = simulate(monkeypatch, lambda clock: beside(clock, 150, 12, FIRST))
    assert max(told.ttft_s for told in chats) < 0.5
    assert max(told.ttft_s for told in before) > 5.0
    assert max(told.ended_s for told in bulk) < 1.05 * max(told.ended_s for told in alone)


@pytest.mark.heavy
def test_the_largest_waits_at_most_twice_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes of three decades, twice as much as can be served."""

    async def run(clock: Clock, order: Order) -> list[Told]:
        chance, due_s, asking = random.Random(3), 0.0, []
        async with serving(clock, own_order=order) as client:
            for number in range(250):
                due_s += chance.expovariate(30)
                num = min(60_000, int(chance.lognormvariate(7.5, 1.4)))
                asking.append(client.ask_at(due_s, random_tokens(number, num), 32))
            return await asyncio.gather(*asking)

    first = simulate(monkeypatch, lambda clock: run(clock, FIRST))
    shortest = simulate(monkeypatch, lambda clock: run(clock, SHORTEST))
    for before, now in zip(first, shortest, strict=True):
        assert now.ttft_s < 2 * before.ttft_s + 2.0
    ttfts = [quantile([told.ttft_s for told in told_of], 0.5) for told_of in (first, shortest)]
    assert ttfts[1] < 0.5 * ttfts[0]
    assert shortest[-1].ended_s < 1.05 * first[-1].ended_s


@examples(40)
@given(
    sizes=st.lists(
        st.tuples(st.integers(1, 20_000), st.sampled_from("ab"), st.integers(-1, 1)),
        min_size=1,
        max_size=20,
    )
)
def test_the_device_never_idles_while_something_waits(sizes: list[tuple[int, str, int]]) -> None:
    async def run(clock: Clock) -> tuple[float, float]:
        async with serving(clock, max_num_seqs=4) as client:
            asking = [
                client.ask(random_tokens(n, size), 3, tenant=tenant, priority=priority)
                for n, (size, tenant, priority) in enumerate(sizes)
            ]
            answers = await asyncio.gather(*asking)
            assert all(told.is_whole for told in answers)
            return client.busy_s, max(told.ended_s for told in answers)

    with pytest.MonkeyPatch.context() as patched:
        busy_s, ended_s = simulate(patched, run)
    assert busy_s == pytest.approx(ended_s)
