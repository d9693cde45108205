"""What the backend keeps of the sequences that hold its slots."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from engines.native.backends.base import Batch, Row, SlotStart

GREEDY_BELOW = 1e-5  # temperatures under this are greedy: dividing by them would overflow


class Slot:
    """One sequence: its tokens, its tables and how it is sampled."""

    __slots__ = (
        "full_blocks",
        "is_biased",
        "is_filtered",
        "is_greedy",
        "num_prompt_tokens",
        "sampling",
        "seed",
        "token_ids",
        "window_blocks",
    )

    def __init__(self, start: SlotStart) -> None:
        self.token_ids = [*start.token_ids]
        self.num_prompt_tokens = start.num_prompt_tokens
        self.full_blocks = [*start.full_blocks]
        self.window_blocks = [*start.window_blocks]
        self.sampling = sampling = start.sampling
        self.seed = start.seed
        self.is_greedy = sampling.temperature < GREEDY_BELOW
        self.is_filtered = sampling.top_p < 1.0 or sampling.top_k > 0 or sampling.min_p > 0.0
        self.is_biased = bool(
            sampling.logit_bias
            or sampling.presence_penalty
            or sampling.frequency_penalty
            or sampling.repetition_penalty != 1.0
        )

    @property
    def num_generated_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens


class Span(NamedTuple):
    """The positions [start, end) of one slot, to be computed; drafts stand at the last of them."""

    slot: Slot
    start: int
    end: int
    is_last: bool
    drafts: tuple[int, ...] = ()

    @property
    def num_tokens(self) -> int:
        return self.end - self.start

    @property
    def num_sampled(self) -> int:
        """How many of the last positions want logits."""
        return 1 + len(self.drafts) if self.is_last else 0

    @property
    def positions(self) -> range:
        return range(self.start, self.end)

    @property
    def token_ids(self) -> list[int]:
        return [*self.slot.token_ids[self.start : self.end - len(self.drafts)], *self.drafts]

    def blocks(self, is_sliding: bool) -> list[int]:
        return self.slot.window_blocks if is_sliding else self.slot.full_blocks

    def first_visible(self, window: int | None) -> int:
        """The first position that the span's first token attends to."""
        return 0 if window is None else max(0, self.start - window + 1)


class Slots:
    """All slots by number."""

    def __init__(self) -> None:
        self._slots: dict[int, Slot] = {}

    def apply(self, batch: Batch) -> list[Span]:
        """Take in what is new; the batch's rows as spans."""
        for start in batch.starts:
            self._slots[start.slot] = Slot(start)
        return [*self._spans(batch.rows)]

    def _spans(self, rows: Iterable[Row]) -> Iterable[Span]:
        for row in rows:
            slot = self._slots[row.slot]
            slot.full_blocks += row.full_blocks
            slot.window_blocks += row.window_blocks
            yield Span(slot, row.start, row.end + len(row.drafts), row.is_last, row.drafts)
