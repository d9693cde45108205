"""Short work of many requests: a part in each turn of the event loop, in order."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable

import pytest

from service.work import in_loop

PIECE_S = 0.002  # two of them are the share of a turn


def piece() -> None:
    """Take CPU time as a prompt of 9 kB does."""
    until = time.thread_time() + PIECE_S
    while time.thread_time() < until:
        pass


async def turns_of(number: int) -> Counter[int]:
    """How many pieces each turn of the loop did, of so many that are asked for in one."""
    done: Counter[int] = Counter()
    turn = 0

    def work() -> None:
        piece()
        done[turn] += 1

    asking = asyncio.gather(*(in_loop(work) for _ in range(number)))
    while not asking.done():
        await asyncio.sleep(0)
        turn += 1
    return done


async def test_a_turn_of_the_loop_has_its_share_of_many_short_works() -> None:
    done = await turns_of(20)
    assert done.total() == 20
    assert max(done.values()) <= 2


async def test_short_work_alone_is_done_at_once() -> None:
    done: list[int] = []
    asking = in_loop(lambda: done.append(1))
    with pytest.raises(StopIteration):  # it waits for nothing
        asking.send(None)
    assert done == [1]


async def test_waiting_work_is_done_in_order_and_its_errors_are_raised() -> None:
    done: list[int] = []

    def work(number: int) -> Callable[[], int]:
        def do() -> int:
            piece()
            done.append(number)
            return 10 // number

        return do

    numbers = (5, 2, 1, 0, 10)
    asking = (in_loop(work(number)) for number in numbers)
    results = await asyncio.gather(*asking, return_exceptions=True)
    assert done == list(numbers)
    assert isinstance(results.pop(3), ZeroDivisionError)
    assert results == [2, 5, 10, 1]


async def test_work_of_a_request_that_left_is_not_done() -> None:
    done: list[int] = []
    pieces = [asyncio.create_task(in_loop(piece)) for _ in range(4)]
    left = asyncio.create_task(in_loop(lambda: done.append(1)))
    await asyncio.sleep(0)
    left.cancel()
    last = asyncio.create_task(in_loop(lambda: done.append(2)))
    await asyncio.gather(*pieces, last)
    assert done == [2]


def test_a_loop_that_ends_in_mid_turn_takes_nothing_from_the_next() -> None:
    async def spend() -> None:
        await in_loop(piece)
        await in_loop(piece)
        await in_loop(piece)

    for _ in range(3):
        asyncio.run(asyncio.wait_for(spend(), 10))
