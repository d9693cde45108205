"""The sequences that run, each in a slot of the backend."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator

from engines.native.loop.sequence import Sequence, rank


class RunningSequences:
    """Running sequences by rank; a slot that is given back is the next one's at once."""

    def __init__(self, num_slots: int) -> None:
        self._by_rank: list[Sequence] = []
        self._free_slots = [*range(num_slots)][::-1]

    def __len__(self) -> int:
        return len(self._by_rank)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._by_rank)

    @property
    def last(self) -> Sequence:
        """The one of the highest rank, which is preempted first."""
        return self._by_rank[-1]

    def add(self, sequence: Sequence) -> None:
        sequence.slot, sequence.is_started = self._free_slots.pop(), False
        insort(self._by_rank, sequence, key=rank)

    def remove(self, sequence: Sequence) -> None:
        self._by_rank.remove(sequence)
        assert sequence.slot is not None
        self._free_slots.append(sequence.slot)
        sequence.slot = None
