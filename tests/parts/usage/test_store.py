"""What both stores promise beyond what the routes show."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from parts.usage.counting.stored import store_on
from parts.usage.store.base import Totals, Unwritten, UsageCounts, UsageRow, UsageStore
from service.store.sqlite import Database

DAY = 20_786  # 2026-11-29
ROW = UsageRow(DAY, "key-a", "team", "m")


@pytest.fixture
def store(open_database: Callable[[], Database]) -> UsageStore:
    return store_on(open_database())


def batch(requests: int, **accounts: dict[int, int]) -> Unwritten:
    return Unwritten({ROW: UsageCounts(requests, 10, 4, 3, 1, 250)}, accounts)


async def test_a_batch_whose_answer_was_lost_is_added_once(store: UsageStore) -> None:
    await store.write(batch(1), "w", 1)
    await store.write(batch(1), "w", 1)
    assert await store.rows(DAY, None) == {ROW: UsageCounts(1, 10, 4, 3, 1, 250)}
    await store.write(batch(2), "w", 2)
    await store.write(batch(4), "another", 1)
    assert await store.rows(DAY, None) == {ROW: UsageCounts(7, 30, 12, 9, 3, 750)}
    assert await store.rows(DAY, "other") == {}
    assert await store.rows(DAY - 1, None) == {}


async def test_the_totals_of_an_account_are_of_a_day_and_its_month(store: UsageStore) -> None:
    december = DAY + 2
    spent = {DAY - 29: 1, DAY - 28: 10, DAY: 100, DAY + 1: 1000, december: 10_000}
    await store.write(batch(1, a=spent, b={DAY: 5}), "w", 1)
    assert await store.totals(("a", "b", "c"), DAY) == {
        "a": Totals(100, 110),
        "b": Totals(5, 5),
        "c": Totals(0, 0),
    }
    assert await store.totals(("a",), december) == {"a": Totals(10_000, 10_000)}


async def test_the_last_use_of_a_key_is_the_latest_of_all_writers(store: UsageStore) -> None:
    await store.write(Unwritten(uses={"key-a": 200, "key-b": 5}), "w", 1)
    await store.write(Unwritten(uses={"key-a": 100}), "another", 1)
    assert await store.uses() == {"key-a": 200, "key-b": 5}
