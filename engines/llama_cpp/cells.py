"""Where llama.cpp keeps the K/V of each block: its sequences, made to serve our block tables.

llama.cpp knows no blocks. It has one pool of cells, each with a position and the set of sequences
that see it, and it can let one sequence see cells of another without copying them. So whatever
takes a slot gets a fresh sequence here, its holder, which is first shown the cells of the blocks
that others have computed. When the slot changes hands the holder stays behind, idle, for as
long as it has blocks that may be found again.

In the layers with a window llama.cpp overwrites cells that their only sequence sees no more.
A block that is to be found again must not go that way: each holder has a twin, which sees the
holder's whole blocks too and computes nothing.

    block     [i * block_size, (i + 1) * block_size) of the cells of its holders, i its place in
              every table that has it
    cells     no more than the blocks have room for: before a block is refilled its holders
              forget what it held
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from engines.native.backends.base import Batch, SlotStart

TO_THE_END = -1


class Memory(Protocol):
    """llama.cpp's K/V; `end` TO_THE_END is beyond any position."""

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        """Let `target` see the cells [start, end) of `source`."""

    def remove(self, sequence: int, start: int, end: int) -> None:
        """Take the cells [start, end) from a sequence; a cell that none sees is free."""


class Cells:
    """Follows the batches of one backend, and tells which sequence each slot is."""

    def __init__(
        self,
        memory: Memory,
        block_size: int,
        num_slots: int,
        num_holders: int,
        *,
        is_prefix_caching: bool,
        on_lost: Callable[[Iterable[int]], None],
    ) -> None:
        """`on_lost` gets the unused blocks whose content is gone.

        With prefix caching num_holders is above 2 * num_slots: what is above waits to be found.
        """
        self._memory = memory
        self._block_size = block_size
        self._num_slots = num_slots
        self._num_holders = num_holders
        self._has_twins = is_prefix_caching
        self._on_lost = on_lost
        self._free = [*range(num_holders)][::-1]
        self._idle: dict[int, None] = {}  # those that no slot has, longest idle first
        self._slots: dict[int, int] = {}  # the holder of each
        self._num_kept: dict[int, int] = {}  # leading positions that the holder's twin sees
        self._tables: dict[int, dict[int, int]] = {}  # by holder: its blocks, with their places
        self._holders: dict[int, list[int]] = {}  # by block

    def apply(self, batch: Batch) -> None:
        """Prepare the cells for a step: let its new slots see cells that others computed."""
        rows = {row.slot: row for row in batch.rows}
        for start in batch.starts:
            self._start(start, rows[start.slot].start)
        for row in batch.rows:
            self._fill(row.full_blocks, self._slots[row.slot])
        # Only now: what is started in this batch has all that it continues from by now.
        while self._has_twins and len(self._free) < self._num_slots:
            self._wipe(next(iter(self._idle)))

    def sequence(self, slot: int) -> int:
        return self._slots[slot]

    def computed(self, slot: int, end: int) -> None:
        """Keep the whole blocks of a slot whose positions before `end` are computed by now."""
        holder = self._slots[slot]
        first, end = self._num_kept[holder], end // self._block_size * self._block_size
        if self._has_twins and end > first:
            self._memory.copy(holder, self._twin(holder), first, end)
            self._num_kept[holder] = end

    def _start(self, start: SlotStart, num_computed: int) -> None:
        before = self._slots.get(start.slot)
        if before is not None and self._goes_on(before, start.full_blocks):
            holder = before
            self._rewind(holder, num_computed)
        else:
            if before is not None:
                self._leave(start.slot)
            holder = self._free.pop()
            self._slots[start.slot], self._tables[holder] = holder, {}
            self._num_kept[holder] = num_computed
            self._show(holder, start.full_blocks, num_computed)
        self._fill(start.full_blocks[-(-num_computed // self._block_size) :], holder)

    def _goes_on(self, holder: int, blocks: tuple[int, ...]) -> bool:
        """Whether the slot is only started again, after a failed step."""
        table = [*self._tables[holder]]
        return bool(table) and table == [*blocks[: len(table)]]

    def _rewind(self, holder: int, num_computed: int) -> None:
        whole = num_computed // self._block_size * self._block_size
        self._num_kept[holder] = num_kept = min(self._num_kept[holder], whole)
        self._memory.remove(holder, num_computed, TO_THE_END)
        if self._has_twins:
            self._memory.remove(self._twin(holder), num_kept, TO_THE_END)

    def _show(self, holder: int, blocks: tuple[int, ...], num_computed: int) -> None:
        """Let it see what others have computed, a run of blocks of the same holder at a time."""
        size = self._block_size
        assert num_computed % size == 0, "only whole blocks are shared"
        shared = [self._holders[block][-1] for block in blocks[: num_computed // size]]
        first = 0
        for i, source in enumerate(shared, start=1):
            if i == len(shared) or shared[i] != source:
                for target in (holder, self._twin(holder)):
                    self._memory.copy(self._twin(source), target, first * size, i * size)
                first = i
        for i, block in enumerate(blocks[: len(shared)]):
            self._tables[holder][block] = i
            self._holders[block].append(holder)

    def _fill(self, blocks: Iterable[int], holder: int) -> None:
        """Assign blocks that the holder is about to compute, as the next in its table."""
        stale: dict[int, list[int]] = {}  # places by holder
        for block in blocks:
            for other in self._holders.pop(block, ()):
                if other != holder:
                    stale.setdefault(other, []).append(self._tables[other].pop(block))
            self._holders[block] = [holder]
            self._tables[holder].setdefault(block, len(self._tables[holder]))
        for other, places in stale.items():
            if other in self._idle and not self._tables[other]:
                self._release(other)
                continue
            for first, last in _runs(places):  # each removal looks at every cell there is
                self._remove(other, first * self._block_size, (last + 1) * self._block_size)

    def _leave(self, slot: int) -> None:
        holder = self._slots.pop(slot)
        self._idle[holder] = None
        if not self._has_twins:
            self._wipe(holder)
        elif not self._tables[holder]:
            self._release(holder)

    def _wipe(self, holder: int) -> None:
        """Free an idle sequence; cells that only it has are lost."""
        lost = []
        for block in self._tables[holder]:
            self._holders[block].remove(holder)
            if not self._holders[block]:
                del self._holders[block]
                lost.append(block)
        self._release(holder)
        self._on_lost(lost)

    def _release(self, holder: int) -> None:
        self._remove(holder, 0, TO_THE_END)  # also the cells of blocks that were never whole
        del self._idle[holder], self._tables[holder], self._num_kept[holder]
        self._free.append(holder)

    def _remove(self, holder: int, start: int, end: int) -> None:
        for sequence in {holder, self._twin(holder)}:
            self._memory.remove(sequence, start, end)

    def _twin(self, holder: int) -> int:
        return holder + self._num_holders if self._has_twins else holder


def _runs(places: list[int]) -> Iterator[tuple[int, int]]:
    """The first and the last of each run of consecutive numbers."""
    places = sorted(places)
    first = 0
    for i in range(1, len(places) + 1):
        if i == len(places) or places[i] != places[i - 1] + 1:
            yield places[first], places[i - 1]
            first = i
