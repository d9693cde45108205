"""Waiting for a prefix: which running sequence computes which block, and who waits for one.

A sequence whose next block a running sequence will compute does not begin: it would compute the
block again. It waits until the block is in the prefix cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import Enum, auto

from engines.native.loop.sequence import Sequence
from engines.queueing.fair_queue import FairQueue
from engines.queueing.own_order import ShortestFirst


class StepTurn(Enum):
    """Who begins in a step."""

    ALL = auto()
    URGENT = auto()  # no bulk
    BULK = auto()  # that has waited longest


class ComingBlocks:
    """By hash, the first sequence that will compute each block."""

    def __init__(self) -> None:
        self._by_hash: dict[bytes, Sequence] = {}

    def __bool__(self) -> bool:
        return bool(self._by_hash)

    def __contains__(self, block_hash: bytes) -> bool:
        return block_hash in self._by_hash

    def has_for(self, sequence: Sequence, block_hash: bytes) -> bool:
        """Whether the sequence should wait for it: bulk may be long in computing it."""
        other = self._by_hash.get(block_hash)
        return other is not None and (sequence.is_bulk or not other.is_bulk)

    def add(self, sequence: Sequence, hashes: Iterable[bytes]) -> None:
        for block_hash in hashes:
            self._by_hash.setdefault(block_hash, sequence)

    def discard(self, sequence: Sequence, first: int, end: int | None = None) -> None:
        """The sequence will not compute these blocks: it has, or it never will."""
        for block_hash in sequence.block_hashes[first:end]:
            if self._by_hash.get(block_hash) is sequence:
                del self._by_hash[block_hash]


class WaitingSequences:
    """Sequences that have not begun or were preempted: those that wait for a block, in the order
    in which they left the queue, then the queue."""

    def __init__(
        self,
        awaited: Callable[[Sequence], bytes | None],
        is_coming: Callable[[bytes], bool],
        most_ahead: int = 0,
    ) -> None:
        """`awaited`: the hash of the block that a sequence should wait for (BlockManager);
        `most_ahead`: tokens of shorter prompts that may pass one that came before."""
        self._awaited, self._is_coming = awaited, is_coming
        self._queue: FairQueue[Sequence] = FairQueue(lambda: ShortestFirst(most_ahead))
        self._for_block: dict[Sequence, bytes] = {}

    def __len__(self) -> int:
        return len(self._for_block) + len(self._queue)

    def __iter__(self) -> Iterator[Sequence]:
        yield from self._for_block
        yield from self._queue

    @property
    def num_queued(self) -> int:
        return len(self._queue)

    @property
    def first(self) -> list[Sequence]:
        """The sequences that may begin next."""
        return [*self._for_block, *([self._queue.head()] if self._queue else [])]

    def num_awaiting(self, beside: Sequence) -> int:
        """Sequences that wait for a block, but for this one."""
        return len(self._for_block) - (beside in self._for_block)

    def add(self, sequence: Sequence, num_cached: int = 0) -> None:
        """`num_cached`: tokens of it that need not be computed, as far as that is known."""
        num = len(sequence.token_ids) - num_cached
        self._queue.add(sequence, sequence.request.priority, tenant="", num_tokens=num, work=num)

    def restore(self, sequence: Sequence) -> None:
        """Queue a preempted sequence before all new ones of its priority."""
        self._queue.restore(sequence, *sequence.rank)

    def remove(self, sequence: Sequence) -> None:
        self._queue.discard(sequence)
        self._for_block.pop(sequence, None)

    def take(self, sequence: Sequence) -> None:
        """Take out one that `ready` gave: it begins."""
        if sequence in self._for_block:
            del self._for_block[sequence]
        else:
            self._queue.take(None if sequence is self._queue.head() else sequence)

    @property
    def has_urgent(self) -> bool:
        """Whether one that is no bulk waits, and for no block."""
        blocks = self._for_block.items()
        is_ready = any(not each.is_bulk and not self._is_coming(of) for each, of in blocks)
        return is_ready or self._queue.urgent_head() is not None

    def ready(
        self, has_room: Callable[[Sequence], bool], turn: StepTurn = StepTurn.ALL
    ) -> Iterator[Sequence]:
        """Those that may begin, in order, while there is room; each is taken, or it ends."""
        is_urgent = turn is StepTurn.URGENT
        for sequence in [*self._for_block]:
            if is_urgent and sequence.is_bulk:
                continue
            if not has_room(sequence):
                return
            if self._is_coming(self._for_block[sequence]):
                continue
            if (awaited := self._awaited(sequence)) is not None:
                self._for_block[sequence] = awaited
                continue
            yield sequence
        while (first := self._first(turn)) is not None and has_room(first):
            if (awaited := self._awaited(first)) is not None:
                self.take(first)
                self._for_block[first] = awaited
            else:
                yield first

    def _first(self, turn: StepTurn) -> Sequence | None:
        if turn is StepTurn.URGENT or not self._queue:
            return self._queue.urgent_head()
        return self._queue.oldest() if turn is StepTurn.BULK else self._queue.head()
