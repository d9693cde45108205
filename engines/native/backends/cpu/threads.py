"""How many threads a piece of work deserves.

Threads that wait for one another spin, and so take a core from the API process and stall
when they lose their own. Little work is faster on one thread as soon as the machine does
anything else: nano on two busy cores generates twenty times as fast as with two threads.
"""

from __future__ import annotations

import torch

# In multiply-adds: below about half a millisecond on one core a second thread gains nothing.
_MIN_PARALLEL_WORK = 25_000_000
_MIN_ROWS = 10  # with fewer, reading the weights takes the time, not multiplying
_WORK_OF_CACHED_VALUE = 16  # gathering K/V and reading it takes the time, not multiplying


class ThreadChooser:
    """Sets torch's number of threads before each stage of a step."""

    def __init__(self, max_threads: int) -> None:
        self._max_threads = max_threads

    def prepare(self, num_rows: int, num_weights: int, num_cached_values: int = 0) -> None:
        """Announce products of num_rows rows with a matrix of num_weights values.

        `num_cached_values` of K/V are attended to in between. The choice stays in force for
        what follows in this thread, such as sampling.
        """
        work = max(num_rows, _MIN_ROWS) * num_weights + num_cached_values * _WORK_OF_CACHED_VALUE
        torch.set_num_threads(self._max_threads if work >= _MIN_PARALLEL_WORK else 1)
