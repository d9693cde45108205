"""Sequences that decode one token in every step, and of which nothing else is to be told.

Their numbers are kept as arrays, a column each, so that a step costs them next to nothing: of a
sequence itself only `token_ids` is up to date while it is steady. All of them are in every step
that is launched, so each has as many pending tokens as there are steps in flight. A sequence
leaves where something happens: a new block, its end, drafts, a failure; it may come back at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Sequence_
from dataclasses import dataclass
from typing import Final

import numpy as np

from engines.native.backends.base import SteadyRows
from engines.native.loop.block_manager import BlockManager
from engines.native.loop.sequence import Sequence
from engines.native.loop.step_plan import Chunk, row_of

# Of a column: the slot; where the next row starts, and before which position it must; at how many
# computed tokens blocks are to be registered or released; the longest answer's end.
_SLOT, _START, _LIMIT, _COMMIT, _END = range(5)
_NOBODY: Final = np.empty((5, 0), np.int64)

PlainTokens = tuple[list[Sequence], list[int]]  # one token of each, with nothing else to tell


@dataclass(frozen=True, slots=True)
class SteadyStep:
    """The steady rows of one step: who they were when it was launched."""

    sequences: list[Sequence]
    rows: SteadyRows

    def chunks(self) -> list[Chunk]:
        starts = self.rows.starts.tolist()
        return [_chunk(*pair) for pair in zip(self.sequences, starts, strict=True)]


class Steady:
    """`num_pending`: everywhere the number of steps in flight."""

    def __init__(self, blocks: BlockManager) -> None:
        self._blocks = blocks
        self.sequences: list[Sequence] = []  # replaced, never changed: steps hold it
        self._numbers = _NOBODY
        self._grown: list[Sequence] = []  # that have got blocks for the next step
        self._stops: set[int] = set()  # stop tokens of all of them, and of some that have left

    def __len__(self) -> int:
        return len(self.sequences)

    def may_join(self, sequence: Sequence, num_pending: int) -> bool:
        """Whether a decoding sequence can be launched as a steady row now."""
        return (
            sequence.is_plain
            and sequence.is_started
            and sequence.num_pending_tokens == num_pending
            and sequence.num_sent_blocks == len(sequence.full_blocks)
            and sequence.num_scheduled_tokens < self._limit(sequence)
        )

    def join(self, sequences: Sequence_[Sequence]) -> None:
        if not sequences:
            return
        if not self.sequences:
            self._stops.clear()
        for sequence in sequences:
            sequence.is_steady = True
            self._stops |= sequence.stop_token_ids
        columns = np.array([self._column(sequence) for sequence in sequences], np.int64).T
        self.sequences = [*self.sequences, *sequences]
        self._numbers = np.concatenate((self._numbers, columns), axis=1)

    def leave(self, sequences: Iterable[Sequence], num_pending: int) -> None:
        """Bring these up to date, and let them go; nothing happens to those that are not steady."""
        leaving = [sequence for sequence in sequences if sequence.is_steady]
        for sequence in leaving:
            _update(sequence, num_pending)
            sequence.is_steady = False
        if leaving:
            stay = [sequence.is_steady for sequence in self.sequences]
            self.sequences = [each for each in self.sequences if each.is_steady]
            self._numbers = self._numbers[:, stay]

    def grow(self, num_pending: int) -> None:
        """Reserve blocks for the next tokens where they need one; let those go for whom there is
        none, or whose end is in flight."""
        numbers, leaving = self._numbers, []
        for i in (numbers[_START] >= numbers[_LIMIT]).nonzero()[0].tolist():
            sequence = self.sequences[i]
            _update(sequence, num_pending)
            if sequence.num_schedulable_tokens and self._blocks.reserve(sequence, 1):
                numbers[_LIMIT, i] = self._limit(sequence)
                self._grown.append(sequence)
            else:
                leaving.append(sequence)
        self.leave(leaving, num_pending)

    @property
    def context(self) -> int:
        """Tokens that their next rows attend to, in all."""
        return int(self._numbers[_START].sum()) + len(self)

    def launch(self) -> SteadyStep | None:
        """Their rows of the next step, if there are any."""
        if not self.sequences:
            self._grown.clear()
            return None
        numbers, grown = self._numbers, {}
        for sequence in self._grown:
            if sequence.is_steady:
                place = self.sequences.index(sequence)
                grown[place] = row_of(_chunk(sequence, int(numbers[_START, place])))
        self._grown.clear()
        step = SteadyStep(self.sequences, SteadyRows(numbers[_SLOT], numbers[_START], grown))
        self._numbers = numbers.copy()
        self._numbers[_START] += 1
        return step

    def take_in(
        self, step: SteadyStep, tokens: list[int], num_pending: int
    ) -> tuple[PlainTokens, list[tuple[Chunk, int]]]:
        """Append what a step has brought; returns that, and the rows that are to be accepted one
        by one: of sequences that end here, are broken or have left.

        `num_pending`: with this step. Sequences with another row in it are not steady now.
        """
        sequences = step.sequences
        odd = self._odd(sequences, tokens, num_pending)
        rest: list[tuple[Chunk, int]] = []
        if odd:
            starts = step.rows.starts
            rest = [(_chunk(sequences[i], int(starts[i])), tokens[i]) for i in odd]
            self.leave([sequences[i] for i in odd], num_pending)
            kept = [i for i in range(len(tokens)) if i not in odd]
            sequences, tokens = [sequences[i] for i in kept], [tokens[i] for i in kept]
        for sequence, token_id in zip(sequences, tokens, strict=True):
            sequence.token_ids.append(token_id)
        self._commit(num_pending - 1)
        return (sequences, tokens), rest

    def _odd(self, sequences: list[Sequence], tokens: list[int], num_pending: int) -> set[int]:
        odd: set[int] = set()
        if sequences is not self.sequences:
            odd.update(i for i, each in enumerate(sequences) if not each.is_steady)
        if min(tokens) < 0 or not self._stops.isdisjoint(tokens):
            pairs = enumerate(zip(sequences, tokens, strict=True))
            odd.update(i for i, (each, token) in pairs if token < 0 or token in each.stop_token_ids)
        numbers = self._numbers
        ends = (numbers[_START] - num_pending + 2 >= numbers[_END]).nonzero()[0]
        if len(ends):
            ending = {self.sequences[i] for i in ends}
            odd.update(i for i, each in enumerate(sequences) if each in ending)
        return odd

    def _commit(self, num_pending: int) -> None:
        """Register and release blocks where that is due, now that the step is taken in."""
        numbers = self._numbers
        due = (numbers[_START] - num_pending >= numbers[_COMMIT]).nonzero()[0]
        for i in due:
            sequence = self.sequences[i]
            _update(sequence, num_pending)
            self._blocks.commit(sequence, 0)
            numbers[_COMMIT, i] = self._blocks.next_commit(sequence)

    def _column(self, sequence: Sequence) -> tuple[int, ...]:
        assert sequence.slot is not None
        limit, commit = self._limit(sequence), self._blocks.next_commit(sequence)
        start, end = sequence.num_scheduled_tokens, sequence.max_len
        return sequence.slot, start, limit, commit, end

    def _limit(self, sequence: Sequence) -> int:
        """Its rows start before this: they have blocks, and a token after them may come."""
        return min(len(sequence.full_blocks) * self._blocks.block_size, sequence.max_len - 1)


def _chunk(sequence: Sequence, start: int) -> Chunk:
    return Chunk(sequence, start, start + 1, True)


def _update(sequence: Sequence, num_pending: int) -> None:
    """Set what follows from the tokens of a steady sequence."""
    sequence.num_computed_tokens = len(sequence.token_ids) - 1
    sequence.num_pending_tokens = num_pending
    sequence.num_scheduled_tokens = sequence.num_computed_tokens + num_pending
