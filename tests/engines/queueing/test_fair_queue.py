"""Who is served next: by priority, by tenant's share, and nobody never."""

from __future__ import annotations

import gc
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.queueing.fair_queue import MOST_COUNTERS, OLDEST_EVERY, FairQueue
from tests.examples import examples


def served(queue: FairQueue[str], num: int, cost: float = 10) -> list[str]:
    """Take items whose first letter is their tenant, each costing the same."""
    items = []
    for _ in range(num):
        items.append(queue.take())
        queue.charge(items[-1][0], cost)
    return items


def test_one_tenants_thousand_do_not_hold_up_anothers_one() -> None:
    queue: FairQueue[str] = FairQueue()
    for i in range(1000):
        queue.add(f"a{i}", 0, "a")
    served(queue, 5)
    queue.add("b", 0, "b")
    assert "b" in served(queue, 2)


def test_tenants_share_evenly_by_work_not_by_number() -> None:
    queue: FairQueue[str] = FairQueue()
    for i in range(400):
        queue.add(f"a{i}", 0, "a")
        queue.add(f"b{i}", 0, "b")
    work: Counter[str] = Counter()
    for _ in range(200):
        tenant = queue.take()[0]
        cost = 30 if tenant == "a" else 10
        queue.charge(tenant, cost)
        work[tenant] += cost
    assert work["a"] == pytest.approx(work["b"], rel=0.15)


def test_idling_saves_up_nothing_and_having_been_alone_costs_nothing() -> None:
    queue: FairQueue[str] = FairQueue()
    for i in range(100):
        queue.add(f"a{i}", 0, "a")
        served(queue, 1)
    for i in range(20):
        queue.add(f"a{i}", 0, "a")
        queue.add(f"b{i}", 0, "b")
    assert 8 <= Counter(item[0] for item in served(queue, 20))["a"] <= 12


@pytest.mark.parametrize("is_busy", [False, True])
def test_tenants_that_come_once_leave_nothing(is_busy: bool) -> None:
    queue: FairQueue[str] = FairQueue()
    if is_busy:
        queue.add("last", 1, "z")
    held = []
    for number in range(6 * MOST_COUNTERS):
        queue.add("item", 0, f"tenant {number}")
        queue.take()
        queue.charge(f"tenant {number}", 10)
        if number in (2 * MOST_COUNTERS, 6 * MOST_COUNTERS - 1):
            gc.collect()
            held.append(sys.getallocatedblocks())
    assert held[1] - held[0] < 2 * MOST_COUNTERS


def test_what_a_tenant_has_had_counts_among_thousands() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.add("a", 0, "a")
    served(queue, 1, 1000)
    for number in range(3 * MOST_COUNTERS):
        queue.add("item", 0, f"tenant {number}")
        queue.take()
        queue.charge(f"tenant {number}", 10)
    for i in range(40):
        queue.add(f"a{i}", 0, "a")
        queue.add(f"b{i}", 0, "b")
    assert {item[0] for item in served(queue, 8)} == {"b"}


def test_one_tenants_items_keep_their_order() -> None:
    queue: FairQueue[str] = FairQueue()
    for i in range(50):
        queue.add(f"a{i}", 0, "a")
    assert served(queue, 50) == [f"a{i}" for i in range(50)]


def test_urgent_ones_go_first_yet_the_last_priority_does_not_starve() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.add("z", 9, "z")
    for i in range(OLDEST_EVERY):
        queue.add(f"a{i}", -1, "a")
    order = served(queue, OLDEST_EVERY)
    assert order.index("z") == OLDEST_EVERY - 1
    assert set(order) - {"z"} == {f"a{i}" for i in range(OLDEST_EVERY - 1)}


def test_who_was_served_already_goes_before_the_new_ones_of_its_priority() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.add("new", 0, "a")
    queue.add("urgent", -1, "b")
    queue.restore("second", 0, 7)
    queue.restore("first", 0, 3)
    assert [*queue] == ["urgent", "first", "second", "new"]
    assert [queue.take() for _ in range(4)] == ["urgent", "first", "second", "new"]
    assert len(queue) == 0


def test_a_full_queue_still_has_room_for_others() -> None:
    queue: FairQueue[int] = FairQueue()
    number = 0
    while queue.has_room("flood", 80):
        queue.add(number, 0, "flood")
        number += 1
    assert number == 70
    assert queue.has_room("other", 80)
    assert queue.has_room("", 80)


steps = st.lists(
    st.tuples(
        st.sampled_from(["add", "take", "restore", "discard", "charge"]),
        st.integers(-1, 1),
        st.sampled_from("abc"),
    ),
    max_size=60,
)


@examples(150)
@given(steps=steps)
def test_nothing_is_lost_or_served_twice(steps: list[tuple[str, int, str]]) -> None:
    queue: FairQueue[int] = FairQueue()
    waiting: set[int] = set()
    for number, (action, priority, tenant) in enumerate(steps):
        if action == "add":
            queue.add(number, priority, tenant)
            waiting.add(number)
        elif action == "restore":
            queue.restore(number, priority, number)
            waiting.add(number)
        elif action == "charge":
            queue.charge(tenant, 5)
        elif waiting and action == "take":
            head = queue.head()
            assert queue.take() == head
            waiting.remove(head)
        elif waiting and action == "discard":
            queue.discard(waiting.pop())
            queue.discard(-1)
        assert set(queue) == waiting
        assert len(queue) == len(waiting)
    while waiting:
        waiting.remove(queue.take())
