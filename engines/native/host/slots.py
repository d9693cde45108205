"""The slots' tokens and blocks, and one step's spans of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from torch import Tensor

from engines.native.backends.base import Batch, Row, SlotStart

GREEDY_BELOW = 1e-5  # temperatures under this are greedy: dividing by them would overflow


class Slot:
    """One sequence: its tokens, its tables and how it is sampled."""

    __slots__ = (
        "full_blocks",
        "fused",
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
        self.fused: tuple[int, Tensor] | None = None  # what a head keeps of the last positions
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
    """The positions [start, end) of one slot, to be computed; drafts are at the last of them."""

    slot: Slot
    start: int
    end: int
    is_last: bool
    drafts: tuple[int, ...] = ()
    num_wanted: int = 0
    prompt_logprobs: int | None = None  # the likeliest tokens beside each of the prompt's

    @property
    def scored_token_ids(self) -> list[int]:
        """The prompt's tokens whose log-probabilities are wanted, each after its position."""
        if self.prompt_logprobs is None:
            return []
        return self.slot.token_ids[
            self.start + 1 : min(self.end, self.slot.num_prompt_tokens - 1) + 1
        ]

    @property
    def num_tokens(self) -> int:
        """Tokens to compute, drafts included."""
        return self.end - self.start

    @property
    def num_sampled(self) -> int:
        """How many of the last positions need logits."""
        return 1 + len(self.drafts) if self.is_last else 0

    @property
    def positions(self) -> range:
        return range(self.start, self.end)

    @property
    def token_ids(self) -> list[int]:
        return [*self.slot.token_ids[self.start : self.end - len(self.drafts)], *self.drafts]

    def blocks(self, is_sliding: bool) -> list[int]:
        """The slot's block table of one kind of layer."""
        return self.slot.window_blocks if is_sliding else self.slot.full_blocks

    def first_visible(self, window: int | None) -> int:
        """The first position that the span's first token attends to within the window."""
        return 0 if window is None else max(0, self.start - window + 1)


class Slots:
    """The state of all slots, by their number."""

    def __init__(self) -> None:
        self._slots: dict[int, Slot] = {}

    def apply(self, batch: Batch) -> list[Span]:
        """Update the slots with a batch's changes; returns its rows as spans."""
        for start in batch.starts:
            self._slots[start.slot] = Slot(start)
        return [*self._spans(batch.rows)]

    def _spans(self, rows: Iterable[Row]) -> Iterable[Span]:
        for row in rows:
            slot = self._slots[row.slot]
            slot.full_blocks += row.full_blocks
            slot.window_blocks += row.window_blocks
            end = row.end + len(row.drafts)
            yield Span(
                slot,
                row.start,
                end,
                row.is_last,
                row.drafts,
                row.num_wanted,
                row.prompt_logprobs,
            )
