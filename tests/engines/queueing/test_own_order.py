"""The order within one tenant: short ones first, nobody never, and other tenants notice nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.errors import Overloaded
from engines.queueing.fair_queue import OLDEST_EVERY, FairQueue
from engines.queueing.own_order import ByArrival, ShortestFirst, length_class
from tests.engines.queueing.recorder import Clock, Recorder, engine_of, opener, request
from tests.examples import examples

MOST_AHEAD = 1000.0
Name = tuple[str, int, int]  # tenant, number, tokens


def queue_of(order: type[ByArrival[Name]] = ShortestFirst) -> FairQueue[Name]:
    return FairQueue(lambda: order(MOST_AHEAD))


def add(queue: FairQueue[Name], name: Name) -> None:
    queue.add(name, 0, name[0], num_tokens=name[2], work=name[2])


def take(queue: FairQueue[Name]) -> Name:
    name = queue.take()
    queue.charge(name[0], name[2])
    return name


def test_a_short_one_passes_long_ones_of_its_tenant() -> None:
    queue = queue_of()
    for number in range(100):
        add(queue, ("a", number, 4000))
    taken = [take(queue) for _ in range(10)]
    add(queue, ("a", 100, 200))
    assert take(queue) == ("a", 100, 200)
    assert take(queue) == ("a", 10, 4000)
    assert [number for _, number, _ in taken] == [*range(10)]


def test_those_of_one_class_keep_the_order_of_arrival() -> None:
    queue = queue_of()
    sizes = [4000, 2100, 3000, 4096, 2049]
    assert len({*map(length_class, sizes)}) == 1
    for number, size in enumerate(sizes):
        add(queue, ("a", number, size))
    assert [take(queue)[1] for _ in sizes] == [*range(5)]


def test_short_ones_without_end_leave_half_to_the_long_ones() -> None:
    """A little more: one turn in sixteen is that of the oldest."""
    queue, numbers = queue_of(), count()
    for _ in range(20):
        add(queue, ("a", next(numbers), 4000))
    work = {200: 0, 4000: 0}
    while work[4000] < 40_000:
        while sum(size == 200 for _, _, size in queue) < 5:
            add(queue, ("a", next(numbers), 200))
        size = take(queue)[2]
        work[size] += size
    assert 0.5 * work[4000] < work[200] < 1.1 * work[4000]


arrivals = st.lists(  # size of each, and how many are served before it comes
    st.tuples(st.sampled_from([1, 100, 300, 900, 2000, 7000]), st.integers(0, 3)),
    min_size=1,
    max_size=80,
)


@examples(300)
@given(arrivals=arrivals)
def test_nobody_waits_for_more_than_twice_the_work_that_was_there_before(
    arrivals: Sequence[tuple[int, int]],
) -> None:
    """And for what may pass at any time, and two more."""
    queue = queue_of()
    served = 0
    before: dict[Name, int] = {}
    came: dict[Name, int] = {}

    def serve() -> None:
        nonlocal served
        name = take(queue)
        waited = served - came.pop(name)
        assert waited <= 2 * before.pop(name) + MOST_AHEAD + 2 * 7000
        served += name[2]

    for number, (size, num_served) in enumerate(arrivals):
        for _ in range(min(num_served, len(queue))):
            serve()
        name = ("a", number, size)
        came[name], before[name] = served, sum(waiting for _, _, waiting in queue)
        add(queue, name)
    while len(queue):
        serve()


mixes = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from([1, 300, 900, 2000, 7000])),
    min_size=1,
    max_size=60,
)


@examples(300)
@given(mix=mixes, order=st.sampled_from([ByArrival, ShortestFirst]))
def test_each_turn_is_that_of_the_tenant_with_the_least_work(
    mix: Sequence[tuple[str, int]], order: type[ByArrival[Name]]
) -> None:
    queue, work = queue_of(order), Counter[str]()
    for number, (tenant, size) in enumerate(mix):
        add(queue, (tenant, number, size))
    for turn in range(len(mix)):
        waiting = {tenant for tenant, _, _ in queue}
        tenant, _, size = take(queue)
        is_turn_of_oldest = turn % OLDEST_EVERY == OLDEST_EVERY - 1
        assert is_turn_of_oldest or work[tenant] == min(work[name] for name in waiting)
        work[tenant] += size


@examples(300)
@given(
    sizes=st.lists(st.sampled_from([1, 300, 900, 2000, 7000]), min_size=1, max_size=60),
    num_others=st.integers(1, 10),
)
def test_the_order_within_one_tenant_holds_no_other_up(sizes: list[int], num_others: int) -> None:
    """By more than two of its requests, whose sizes come in another order."""
    waits: list[list[int]] = []  # by order: the work served before each request of the other
    for order in (ByArrival[Name], ShortestFirst[Name]):
        queue, served = queue_of(order), 0
        for number, size in enumerate(sizes):
            add(queue, ("a", number, size))
        for number in range(num_others):
            add(queue, ("b", number, 500))
        waits.append([])
        while len(queue):
            name = take(queue)
            if name[0] == "b":
                waits[-1].append(served)
            served += name[2]
    for by_arrival, shortest_first in zip(*waits, strict=True):
        assert shortest_first <= by_arrival + 2 * max(sizes)


async def test_a_chat_enters_before_bulk_that_waits() -> None:
    runner = Recorder(num_step_tokens=8192)
    open_, _ = opener(await engine_of(runner))
    for number in range(10):
        await open_(request(f"bulk{number}", 4096))
    await open_(request("chat", 200))
    assert runner.begun == ["bulk0", "bulk1", "bulk2", "bulk3"]
    runner.give("bulk0")
    assert runner.begun[4:] == ["chat"]


async def test_a_chat_behind_much_bulk_of_its_caller_is_not_refused_for_its_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    runner = Recorder(num_step_tokens=8192)
    engine = await engine_of(runner)
    open_, _ = opener(engine)
    for number in range(80):
        await open_(request(f"bulk{number}", 4096))
    for number in range(30):
        await clock.pass_to(1.0 + number)
        runner.give(f"bulk{number}", is_last=True)
    assert engine.expected_wait("").sure_s < 2.0
    await open_(request("chat", 200, max_wait_s=10.0))
    with pytest.raises(Overloaded):
        await open_(request("more", 4096, max_wait_s=10.0))
