"""Which drafts a step verifies: options propose them, the step and the answer bound them."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Sequence_

from engines.native.loop.option import Option, calls
from engines.native.loop.sequence import Sequence


class Drafting:
    """The drafts of the options; `max_drafts` of one sequence in a step."""

    def __init__(self, options: Iterable[Option], max_drafts: int) -> None:
        options = tuple(options)
        self._waits, self._drafts = calls(options, "waits"), calls(options, "drafts")
        self._max_drafts = max_drafts

    def waits(
        self, running: Iterable[Sequence], decoding: Sequence_[Sequence], *, has_pending: bool
    ) -> bool:
        """Whether to collect the step in flight first, so that all sequences continue together.

        Otherwise those with drafts and those without would take turns, each step half full.
        `has_pending`: a token of theirs is not known yet.
        """
        if any(sequence.is_verifying for sequence in running):
            return True
        if not self._waits or not has_pending:
            return False
        return any(waits(decoding) for waits in self._waits)

    def propose(
        self, decoding: Sequence_[Sequence], *, has_pending: bool
    ) -> dict[Sequence, tuple[int, ...]]:
        """Drafts for these sequences; none while a token before them is not known."""
        if not self._drafts or has_pending:
            return {}
        return {key: value for each in self._drafts for key, value in each(decoding).items()}

    def fitting(
        self, sequence: Sequence, drafts: tuple[int, ...], num_tokens_left: int
    ) -> tuple[int, ...]:
        """As many as the backend, the step's `num_tokens_left` and the answer have room for."""
        num_left = sequence.max_len - len(sequence.token_ids) - 1
        return drafts[: max(min(self._max_drafts, num_tokens_left - 1, num_left), 0)]
