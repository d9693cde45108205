"""The slots' tokens and blocks, one step's spans of them, and the scores of their next tokens."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engines.native.backends.base import Batch, Row, SlotStart

GREEDY_BELOW = 1e-5  # temperatures under this are greedy: dividing by them would overflow


class TokenCounts:
    """The distinct tokens of a sequence, and how often each was generated; kept from step to
    step."""

    def __init__(self, first: int, num_prompt_tokens: int) -> None:
        """`first`: the position of the first token that is looked at."""
        self._first, self._num_prompt_tokens = first, num_prompt_tokens
        self.version = 0  # of the set of tokens
        self._forget()

    def _forget(self) -> None:
        self._next = self._first
        self.version = self.version + 1
        self._places: dict[int, int] = {}
        self._ids: NDArray[np.int64] = np.empty(64, np.int64)
        self._times: NDArray[np.float32] = np.zeros(64, np.float32)

    def of(self, token_ids: list[int]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The tokens and the times of each, 0 for those of the prompt only.

        The list is the one of the call before, with more tokens or fewer at its end.
        """
        if len(token_ids) < self._next:  # draft tokens were taken back
            self._forget()
        for position in range(self._next, len(token_ids)):
            token_id = token_ids[position]
            place = self._places.get(token_id)
            if place is None:
                place = self._add(token_id)
            self._times[place] += position >= self._num_prompt_tokens
        self._next = max(self._next, len(token_ids))
        return self._ids[: len(self._places)], self._times[: len(self._places)]

    def _add(self, token_id: int) -> int:
        place = self._places[token_id] = len(self._places)
        self.version += 1
        if place == len(self._ids):
            self._ids = np.concatenate([self._ids, np.empty_like(self._ids)])
            self._times = np.concatenate([self._times, np.zeros_like(self._times)])
        self._ids[place] = token_id
        return place


class Slot:
    """One sequence: its tokens, its tables and how it is sampled."""

    def __init__(self, start: SlotStart) -> None:
        self.token_ids = [*start.token_ids]
        self.num_prompt_tokens = start.num_prompt_tokens
        self.full_blocks = [*start.full_blocks]
        self.window_blocks = [*start.window_blocks]
        self.sampling = sampling = start.sampling
        self.seed = start.seed
        self.adapter = start.adapter
        self.fused: tuple[int, Tensor] | None = None  # what a head keeps of the last positions
        self.is_greedy = sampling.temperature < GREEDY_BELOW
        self.is_filtered = sampling.top_p < 1.0 or sampling.top_k > 0 or sampling.min_p > 0.0
        self.is_penalised = bool(
            sampling.presence_penalty
            or sampling.frequency_penalty
            or sampling.repetition_penalty != 1.0
        )
        self.is_biased = self.is_penalised or bool(sampling.logit_bias)
        # A prompt's tokens are penalised by repetition_penalty only.
        skipped = 0 if sampling.repetition_penalty != 1.0 else self.num_prompt_tokens
        self.counts = TokenCounts(skipped, self.num_prompt_tokens)
        self.widened: tuple[int, Columns, Widened] | None = None  # as of these counts and columns

    def columns_of(self, columns: Columns) -> Widened:
        """Columns with one for each token whose score logit_bias and penalties change."""
        touched = np.fromiter(self.sampling.logit_bias, np.int64)
        if self.is_penalised:
            touched = np.concatenate([touched, self.counts.of(self.token_ids)[0]])
        kept = self.widened
        if kept is None or kept[0] != self.counts.version or kept[1] is not columns:
            kept = self.widened = self.counts.version, columns, columns.with_own(touched)
        return kept[2]

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
            yield Span(slot, row.start, end, row.is_last, row.drafts, row.prompt_logprobs)


@dataclass(frozen=True)
class Columns:
    """Which token each column scores, where tokens that always score alike share one."""

    token_ids: Tensor  # (columns), ascending
    shared: int  # the column of the first of the tokens that share it
    vocab_size: int

    @cached_property
    def places(self) -> NDArray[np.int64]:
        """The column of each token of the vocabulary; -1 for one without a column of its own."""
        places = np.full(self.vocab_size, -1)
        places[self.token_ids.cpu().numpy()] = np.arange(len(self.token_ids))
        return places

    def with_own(self, token_ids: NDArray[np.int64]) -> Widened:
        """The same with columns of their own for these tokens too, and where the new ones come in.

        What is inserted there has the shared score. None if no token would be left to share.
        """
        ids: NDArray[np.int64] = self.token_ids.cpu().numpy()
        representative = ids[self.shared]
        if not ((self.places[token_ids] < 0) | (token_ids == representative)).any():
            return self, np.empty(0, np.int64)
        wanted = np.unique(token_ids)
        others = wanted[self.places[wanted] < 0]
        shared = self.shared
        if representative in wanted:  # another one takes its place
            is_left = self.places < 0
            is_left[others] = False
            left = int(is_left.argmax())
            if not is_left[left]:
                return None
            others = np.insert(others, np.searchsorted(others, left), left)
            shared = int(np.searchsorted(ids, left) + np.searchsorted(others, left))
        at = np.searchsorted(ids, others)
        found = Columns(torch.from_numpy(np.insert(ids, at, others)), shared, self.vocab_size)
        return found, at

    def draw(self, weights: NDArray[np.float32], uniforms: list[float]) -> list[int]:
        """The token of each row at which the running sum passes uniform times the total.

        weights: (rows, columns), of each single token; summed in the order of the vocabulary,
        so the draw is the one from the spread row, but for rounding.
        """
        ids = self.token_ids.cpu().numpy()
        num_others_before = ids - np.arange(len(ids))  # tokens without a column of their own
        drawn = []
        for row, uniform in zip(weights, uniforms, strict=True):
            other = float(row[self.shared])
            sums = np.cumsum(row, dtype=np.float64) + other * num_others_before
            total = sums[-1] + other * (self.vocab_size - len(ids) - num_others_before[-1])
            drawn.append(self._token_at(uniform * total, sums, other, ids))
        return drawn

    def _token_at(
        self, target: float, sums: NDArray[np.float64], other: float, ids: NDArray[np.int64]
    ) -> int:
        # Before a column's own token lie the others that follow the column before it.
        column = int(np.searchsorted(sums, target, side="right"))
        first = int(ids[column - 1]) + 1 if column else 0
        end = int(ids[column]) if column < len(ids) else self.vocab_size
        left = target - (sums[column - 1] if column else 0.0)
        if left < other * (end - first):
            return first + min(int(left / other), end - first - 1)
        return min(end, self.vocab_size - 1)


Widened = tuple[Columns, NDArray[np.int64]] | None
"""Columns, and where those come in that are not in the ones they were made of."""


class Logits:
    """Scores of the next token, a row for each sampled sequence."""

    def __init__(self, values: Tensor, columns: Columns | None = None) -> None:
        """`values` (rows, columns) float32; without `columns` column i scores token i."""
        self.values, self.columns = values, columns

    def best(self) -> tuple[list[int], NDArray[np.float32]]:
        """The first of the best tokens of each row, and its score; the score is NaN if the row has
        one."""
        rows: NDArray[np.float32] = self.values.cpu().numpy()  # numpy's argmax is ten times torch's
        best = rows.argmax(axis=1)  # stops at a NaN
        return self._tokens(best), rows[np.arange(len(rows)), best]

    def rows(self, is_taken: list[bool]) -> Logits:
        """A copy of those rows for which `is_taken` is true."""
        return Logits(self.values[torch.tensor(is_taken)], self.columns)

    def row(self, index: int) -> Logits:
        """A copy of one row, so that sampling does not change the others."""
        return Logits(self.values[index : index + 1].clone(), self.columns)

    def spread(self) -> Tensor:
        """The logits with a column for each token: (rows, vocabulary)."""
        if self.columns is None:
            return self.values
        shared = self.values[:, self.columns.shared, None]
        dense = shared.expand(-1, self.columns.vocab_size).contiguous()
        return dense.index_copy_(1, self.columns.token_ids, self.values)

    def _tokens(self, columns: NDArray[np.int64]) -> list[int]:
        if self.columns is None:
            ids: list[int] = columns.tolist()
            return ids
        return self.columns.token_ids[torch.from_numpy(columns)].tolist()
