"""The masks of a step's rows, made in threads while the device computes.

A mask depends on the token before it. It is begun as soon as that token is known, and each is a
job of its own: the library lets go of Python's lock, so that they are made side by side, and a row
does not wait for another's. A row whose mask is not there when the device needs it takes the step
again (loop/core.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Final, NamedTuple, Protocol

import numpy as np

from engines.errors import InvalidGrammar
from engines.native.backends.base import TokenMask, TokenMasks
from engines.native.grammar.compiler import Guide
from engines.threads import Threads

# A mask takes 0.05 ms, and its thread needs Python's lock before and after. Of 32 guided rows
# beside 96 others 5 to 13 were late in 200 steps with 14 threads, and none with 4 (H100, 16 cores).
_MOST_THREADS: Final = 4
_DEAD_END: Final = "the grammar reached a state in which no token is allowed"


class Mask:
    """A mask that is being made."""

    __slots__ = ("is_late", "made")

    def __init__(self, made: Future[TokenMask]) -> None:
        self.made = made
        self.is_late = False  # a step did not wait for it

    @property
    def is_made(self) -> bool:
        return self.made.done()


class Masked(Protocol):
    """What a mask follows from: engines.native.loop.sequence.Sequence."""

    guide: Guide | None
    stop_token_ids: frozenset[int]
    mask: Mask | None

    @property
    def may_stop(self) -> bool: ...


class MaskMaker:
    """Makes masks in threads, which begin with the first that is asked for."""

    def __init__(self, vocab_size: int) -> None:
        self._num_words = -(-vocab_size // 32)
        self._num_threads = _num_threads()
        self._threads: Threads | None = None

    def empty(self, num: int) -> TokenMasks:
        return np.empty((num, self._num_words), np.int32)

    def begin(self, sequences: Iterable[Masked]) -> None:
        """Begin the masks of these sequences' next tokens; their guides are the threads' until
        they are made. Those without a guide are made at once.
        """
        jobs: list[_Job] = []
        for each in sequences:
            each.mask = mask = Mask(Future())
            stops = () if each.may_stop else each.stop_token_ids
            job = _Job(each.guide, stops, self.empty(1)[0], mask.made)
            if each.guide is None:
                job.do()
            else:
                jobs.append(job)
        if not jobs:
            return
        if self._threads is None:
            self._threads = Threads(self._num_threads, "masks")
        for first in range(min(self._num_threads, len(jobs))):
            self._threads.submit(_do_all, jobs[first :: self._num_threads])


class _Job(NamedTuple):
    """One mask: what the guide allows, and none of the stop tokens."""

    guide: Guide | None
    stops: Iterable[int]
    mask: TokenMask
    made: Future[TokenMask]

    def do(self) -> None:
        try:
            self.made.set_result(self._filled())
        except BaseException as error:
            self.made.set_exception(error)

    def _filled(self) -> TokenMask:
        mask = self.mask
        if self.guide is None:
            mask.fill(-1)
        else:
            self.guide.fill(mask)
        words = mask.view(np.uint32)
        for token_id in self.stops:
            words[token_id // 32] &= ~np.uint32(1 << token_id % 32)
        if not mask.any():
            raise InvalidGrammar(_DEAD_END)
        return mask


def _do_all(jobs: list[_Job]) -> None:
    for job in jobs:
        job.do()


def wait_for(masks: Iterable[Mask | None], timeout_s: float | None = None) -> None:
    """Wait until all are made, or the time is up."""
    wait([mask.made for mask in masks if mask is not None], timeout_s)


def wait_for_one(masks: Iterable[Mask | None]) -> None:
    """Wait until one is made."""
    making = [mask.made for mask in masks if mask is not None]
    wait(making, return_when=FIRST_COMPLETED)


def gathered(
    masks: Mapping[int, Mask], timeout_s: float | None
) -> tuple[dict[int, TokenMasks], list[int], dict[int, InvalidGrammar]]:
    """What is made in time, by the row; the rows of those that are late; and what went wrong."""
    wait_for(masks.values(), timeout_s)
    made: dict[int, TokenMasks] = {}
    late: list[int] = []
    errors: dict[int, InvalidGrammar] = {}
    for row, mask in masks.items():
        if not mask.is_made:
            mask.is_late = True
            late.append(row)
            continue
        try:
            made[row] = mask.made.result()[np.newaxis]
        except InvalidGrammar as error:
            errors[row] = error
    return made, late, errors


def _num_threads() -> int:
    """All cores but two, for the step loop and the event loop."""
    return min(max(len(os.sched_getaffinity(0)) - 2, 1), _MOST_THREADS)
