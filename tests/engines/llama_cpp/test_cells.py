"""llama.cpp's sequences serve block tables: simulated cells hold what every block should."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

from engines.base import SamplingParams
from engines.llama_cpp.cells import TO_THE_END, Cells
from engines.native.backends.base import Batch, Row, SlotStart

SIZE = 4
WINDOW = 6
NUM_SLOTS = 3


class Simulated:
    """Cells as llama.cpp has them: each with a position, a value, and the sequences that see it.

    A cell that one sequence alone sees is overwritten once it is out of that sequence's window.
    """

    def __init__(self, num_cells: int) -> None:
        self.cells: dict[int, tuple[int, int, set[int]]] = {}
        self.num_cells = num_cells

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        for position, _, sequences in self.cells.values():
            if source in sequences and start <= position < end:
                sequences.add(target)

    def remove(self, sequence: int, start: int, end: int) -> None:
        for index, (position, _, sequences) in list(self.cells.items()):
            if position >= start and (end == TO_THE_END or position < end):
                sequences.discard(sequence)
                if not sequences:
                    del self.cells[index]

    def write(self, sequence: int, start: int, values: list[int]) -> None:
        """Choose cells for all values first, then overwrite them."""
        assert self.last(sequence) == start - 1, "a sequence has no gaps"
        free = [i for i in range(self.num_cells) if i not in self.cells or self.is_lost(i)]
        assert len(free) >= len(values), "no cell is left"
        for index, (position, value) in zip(free, enumerate(values, start), strict=False):
            if index in self.cells:
                position_lost, _, (loser,) = self.cells.pop(index)
                self.remove(loser, 0, position_lost + 1)  # as llama.cpp does
            self.cells[index] = (position, value, {sequence})

    def last(self, sequence: int) -> int:
        return max((p for p, _, seen in self.cells.values() if sequence in seen), default=-1)

    def is_lost(self, index: int) -> bool:
        position, _, sequences = self.cells[index]
        return len(sequences) == 1 and self.last(*sequences) + 1 - position >= WINDOW

    def values(self, sequence: int) -> dict[int, int]:
        return {p: value for p, value, seen in self.cells.values() if sequence in seen}


class Driver:
    """Slots that compute tokens; a value stands for the K/V of a token and all before it."""

    def __init__(
        self, num_blocks: int, num_holders: int, *, is_prefix_caching: bool = True
    ) -> None:
        self.memory = Simulated(num_blocks * SIZE)
        self.lost: list[int] = []
        self.cells = Cells(
            self.memory,
            SIZE,
            NUM_SLOTS if is_prefix_caching else num_holders,
            num_holders,
            is_prefix_caching=is_prefix_caching,
            on_lost=self.lost.extend,
        )
        self.tokens: dict[int, list[int]] = {}

    def start(self, slot: int, blocks: list[int], tokens: list[int], first: int) -> None:
        params = SamplingParams(1)
        start = SlotStart(slot, tuple(tokens), len(tokens), tuple(blocks), (), params, 0)
        self.tokens[slot] = tokens
        self.step((start,), Row(slot, first, len(tokens), True))

    def go_on(self, slot: int, token: int, *blocks: int) -> None:
        num_known = len(self.tokens[slot])
        self.tokens[slot].append(token)
        self.step((), Row(slot, num_known, num_known + 1, True, blocks))

    def step(self, starts: tuple[SlotStart, ...], row: Row) -> None:
        self.cells.apply(Batch(starts, (row,)))
        tokens = self.tokens[row.slot]
        values = [hash(tuple(tokens[: end + 1])) for end in range(row.start, row.end)]
        self.memory.write(self.cells.sequence(row.slot), row.start, values)
        self.cells.computed(row.slot, row.end)
        self.check(row.slot, row.end)

    def check(self, slot: int, end: int) -> None:
        tokens = self.tokens[slot]
        seen = self.memory.values(self.cells.sequence(slot))
        visible = range(max(0, end - WINDOW), end)
        assert [seen.get(p) for p in visible] == [hash(tuple(tokens[: p + 1])) for p in visible]


def test_a_prefix_is_seen_by_who_comes_later_whoever_computed_it_has_gone() -> None:
    driver = Driver(num_blocks=12, num_holders=6)
    driver.start(0, [1, 2, 3], [*range(10)], first=0)
    driver.start(0, [4], [77], first=0)
    driver.start(1, [1, 2, 5], [*range(8), 50, 51], first=8)
    everything = driver.memory.values(driver.cells.sequence(1))
    assert everything == {p: hash(tuple(driver.tokens[1][: p + 1])) for p in range(10)}


def test_a_block_that_is_filled_anew_holds_nothing_of_before() -> None:
    driver = Driver(num_blocks=3, num_holders=6)
    for n in range(20):
        driver.start(n % 2, [1, 2, 3], [100 + n, *range(10)], first=0)
    assert len(driver.memory.cells) == 11


def test_what_is_cached_outlives_the_window_of_who_computed_it() -> None:
    driver = Driver(num_blocks=20, num_holders=6)
    driver.start(0, [1, 2, 3, 4], [*range(16)], first=0)
    for i in range(30):  # out of the window by far; its first blocks are seen by itself alone
        blocks = (5 + i // SIZE,) if i % SIZE == 0 else ()
        driver.go_on(0, 1000 + i, *blocks)
    driver.start(1, [1, 2, 3, 13], [*range(12), 90], first=12)
    everything = driver.memory.values(driver.cells.sequence(1))
    assert everything == {p: hash(tuple(driver.tokens[1][: p + 1])) for p in range(13)}


def test_without_prefix_caching_the_window_lets_go() -> None:
    driver = Driver(num_blocks=3, num_holders=1, is_prefix_caching=False)
    driver.start(0, [1], [5], first=0)
    for n in range(30):
        driver.go_on(0, n, *([2 + n] if n % SIZE == SIZE - 1 else []))
    driver.start(0, [40], [6], first=0)


@pytest.mark.parametrize("first", [0, 4, 6])
def test_a_failed_step_is_computed_again_in_the_same_slot(first: int) -> None:
    driver = Driver(num_blocks=4, num_holders=6)
    driver.start(0, [1, 2], [*range(7)], first=0)
    sequence = driver.cells.sequence(0)
    driver.start(0, [1, 2, 3], [*range(10)], first=first)
    assert driver.cells.sequence(0) == sequence
    assert len(driver.memory.cells) == 10


def test_where_sequences_run_out_the_longest_idle_is_lost_and_told_of() -> None:
    driver = Driver(num_blocks=20, num_holders=6)
    for n in range(5):
        driver.start(0, [n + 1], [n, n, n, n], first=0)
    assert driver.lost == [1, 2]
    driver.start(0, [3, 10], [2, 2, 2, 2, 9], first=4)  # the next to go, were it not seen by now
    assert driver.lost == [1, 2]
    driver.start(1, [11], [7], first=0)
    assert driver.lost == [1, 2, 4]


def test_random_tables_always_see_their_tokens() -> None:
    rng = random.Random(3)
    num_blocks = 24
    driver = Driver(num_blocks, num_holders=8)
    cached: dict[tuple[int, ...], int] = {}  # whole prefixes by their last block
    tables: dict[int, list[int]] = defaultdict(list)
    for _ in range(400):
        slot = rng.randrange(3)
        tables[slot] = []
        for block in driver.lost:
            cached = {prefix: b for prefix, b in cached.items() if b != block}
        driver.lost.clear()
        tokens = [rng.randrange(2) for _ in range(rng.randrange(1, 22))]
        blocks: list[int] = []
        while (prefix := tuple(tokens[: (len(blocks) + 1) * SIZE])) in cached:
            if len(prefix) == len(tokens):
                break
            blocks.append(cached[prefix])
        first = len(blocks) * SIZE
        in_use = {block for table in tables.values() for block in table} | {*blocks}
        free = [block for block in range(1, num_blocks + 1) if block not in in_use]
        rng.shuffle(free)
        blocks += free[: -(-len(tokens) // SIZE) - len(blocks)]
        cached = {p: b for p, b in cached.items() if b not in blocks[first // SIZE :]}
        driver.start(slot, blocks, tokens, first)
        tables[slot] = blocks
        for i in range(len(tokens) // SIZE):
            cached.setdefault(tuple(tokens[: (i + 1) * SIZE]), blocks[i])
        for other in tables:
            driver.check(other, len(driver.tokens[other]))
