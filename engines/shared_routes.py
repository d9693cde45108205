"""What the API workers of one server know together of its engines, in memory that all map.

How much each worker has running on each engine, and which blocks of prompts each engine has been
sent. Nothing is locked: a word that two workers write at once costs a guess, never an answer.
All is words of 64 bits: of each engine, when its blocks were last forgotten and which process it
was then; the workers' counts; then sets of places for blocks, each a hash and, in one word, when it
was last sent and to whom.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Iterable, Sequence
from typing import Final

MOST_ENGINES: Final = 32
MOST_WORKERS: Final = 64
WAYS: Final = 16  # places of a set, of which the one that was not used for longest is taken
_WORD: Final = 8
_LIVES: Final = MOST_ENGINES
_COUNTS: Final = 2 * MOST_ENGINES
_SETS: Final = _COUNTS + MOST_WORKERS * MOST_ENGINES
_EVERYONE: Final = (1 << MOST_ENGINES) - 1


def size_of(num_blocks: int, num_engines: int) -> int:
    """Bytes of the memory for this number of blocks of each engine, and as many again."""
    places = 1 << (2 * num_blocks * num_engines - 1).bit_length()
    return (_SETS + 2 * places) * _WORD


class SharedRoutes:
    """One worker's view of it."""

    def __init__(self, memory: mmap.mmap, worker: int) -> None:
        """A worker that died leaves its counts: its successor begins at zero."""
        self._words = memoryview(memory).cast("Q")
        self._num_sets = (len(self._words) - _SETS) // (2 * WAYS)
        self._own = _COUNTS + worker * MOST_ENGINES
        for number in range(MOST_ENGINES):
            self.tell(number, 0)

    def tell(self, number: int, num_running: int, num_pending: int = 0) -> None:
        """How many requests this worker runs on an engine, and how many tokens of their prompts
        are to be computed."""
        self._words[self._own + number] = num_pending << 32 | num_running

    def load(self, number: int) -> tuple[int, int]:
        """The same of all workers."""
        num = sum(self._words[_COUNTS + number : _SETS : MOST_ENGINES])
        return num & 0xFFFFFFFF, num >> 32

    def num_cached(self, blocks: Sequence[int], numbers: Iterable[int]) -> dict[int, int]:
        """How many leading blocks of a prompt each engine has been sent."""
        found = dict.fromkeys(numbers, 0)
        left = sum(1 << number for number in found)
        for count, block in enumerate(blocks, 1):
            place = self._place(block)
            left &= 0 if place is None else self._holders(place)
            if not left:
                break
            for number in found:
                if left >> number & 1:
                    found[number] = count
        return found

    def add(self, number: int, blocks: Sequence[int]) -> None:
        """Note that an engine is sent a prompt."""
        words, now = self._words, _now()
        for block in blocks:
            place = self._place(block)
            if place is None:
                first = self._first(block)
                used = words[first + 1 : first + 2 * WAYS : 2].tolist()
                place = first + 2 * used.index(min(used))  # time is in the upper half
                words[place] = _tag(block)
                holders = 0
            else:
                holders = self._holders(place)
            words[place + 1] = now << 32 | holders | 1 << number

    def forget(self, number: int, life: int) -> None:
        """An engine is another process, which has nothing of what it was sent until now.

        Each worker says so when it notices, some of them much later: the first one counts.
        """
        if not life or self._words[_LIVES + number] != life:
            self._words[_LIVES + number] = life
            self._words[number] = _now()

    def close(self) -> None:
        self._words.release()

    def _first(self, block: int) -> int:
        return _SETS + _tag(block) % self._num_sets * 2 * WAYS

    def _place(self, block: int) -> int | None:
        first = self._first(block)
        try:
            return first + 2 * self._words[first : first + 2 * WAYS : 2].tolist().index(_tag(block))
        except ValueError:
            return None

    def _holders(self, place: int) -> int:
        """The engines that have a block and have not lost it since."""
        word = self._words[place + 1]
        holders, sent = word & _EVERYONE, word >> 32
        for number in range(MOST_ENGINES) if holders else ():
            if holders >> number & 1 and sent <= self._words[number]:
                holders &= ~(1 << number)
        return holders


def _tag(block: int) -> int:
    return block & 0xFFFFFFFFFFFFFFFF


def _now() -> int:
    return int(time.monotonic()) + 1  # the same clock in all processes; never 0
