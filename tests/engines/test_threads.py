"""Pools of threads, where the system starts no more of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

from engines.threads import Threads

NoThreads = Callable[[], AbstractContextManager[None]]


def test_the_threads_that_are_there_do_all_the_work(no_more_threads: NoThreads) -> None:
    with Threads(8) as pool, no_more_threads():
        done = [pool.submit(pow, 2, number) for number in range(20)]
        assert [each.result(60) for each in done] == [2**number for number in range(20)]


def test_more_are_started_when_there_may_be_more(no_more_threads: NoThreads) -> None:
    both = threading.Barrier(2)
    with Threads(8) as pool:
        with no_more_threads():
            pool.submit(int).result(60)
        waiting = [pool.submit(both.wait, 60) for _ in range(2)]
        assert sorted(each.result(60) for each in waiting) == [0, 1]
