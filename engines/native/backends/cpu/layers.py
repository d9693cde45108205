"""The plain layers: normalisation, rotary positions, the head and its logits.

The rotary embedding is YaRN's: the checkpoint rotates pairs (i, i + head_dim / 2). Loading
interleaves the rows of the query and key projections (`interleave_halves`), so that a pair lies
side by side and one complex product rotates it; attention scores do not change, as both sides are
permuted alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from engines.native.backends.cpu.linear import AnyLinear, linear
from engines.native.backends.cpu.screen import MAX_ROWS, Screen, is_screened
from engines.native.config import RopeConfig


class RmsNorm:
    """x / sqrt(mean(x²) + eps) * weight over the last dimension."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        self._weight, self._eps = weight, eps

    def __call__(self, x: Tensor) -> Tensor:
        """x (..., width) -> the same shape."""
        return F.rms_norm(x, self._weight.shape, self._weight, self._eps)


def interleave_halves(rows: Tensor, head_dim: int) -> Tensor:
    """Reorder dimension 0 of (heads * head_dim, ...): a b c d -> a c b d for head_dim 4."""
    halves: Tensor = rows.unflatten(0, (-1, 2, head_dim // 2))
    return halves.transpose(1, 2).flatten(0, 2)


class RotaryEmbedding:
    """Rotations by position; computed for each step, as a table would cost more than it saves."""

    def __init__(self, rope: RopeConfig, head_dim: int, device: torch.device) -> None:
        self._frequencies = inverse_frequencies(rope, head_dim).to(device)
        self._scale = torch.tensor(attention_factor(rope), device=device)

    def __call__(self, positions: Tensor) -> Tensor:
        """positions (tokens) -> the complex rotation of each pair: (tokens, head_dim / 2)."""
        return torch.polar(self._scale, torch.outer(positions.float(), self._frequencies))


def attention_factor(rope: RopeConfig) -> float:
    """What YaRN multiplies queries and keys by."""
    if rope.attention_factor is not None:
        return rope.attention_factor
    return 0.1 * math.log(rope.factor) + 1.0 if rope.factor > 1 else 1.0


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """Radians per position of each pair: (head_dim / 2).

    Pairs that turn often within the original context keep their frequency, pairs that turn
    less than once are slowed by `factor`, and a linear ramp joins the two.
    """
    num_pairs = head_dim // 2
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    periods = rope.theta**exponents
    low, high = _ramp_bounds(rope, head_dim)
    ramp = (torch.arange(num_pairs, dtype=torch.float32) - low) / (high - low)
    slowed = ramp.clamp(0, 1)
    return slowed / (rope.factor * periods) + (1 - slowed) / periods


def rotate(x: Tensor, rotations: Tensor) -> None:
    """Rotate x (tokens, heads, head_dim) in place by rotations (tokens, head_dim / 2)."""
    rotations = rotations.unsqueeze(1)
    if x.dtype == torch.float32:
        torch.view_as_complex(x.unflatten(-1, (-1, 2))).mul_(rotations)
        return
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    x.copy_(torch.view_as_real(pairs * rotations).flatten(-2))


def _ramp_bounds(rope: RopeConfig, head_dim: int) -> tuple[float, float]:
    """The pairs between which the ramp runs, as transformers computes them."""
    low, high = (_pair_turning(rope, head_dim, n) for n in (rope.beta_fast, rope.beta_slow))
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    return low, high + 0.001 if low == high else high


def _pair_turning(rope: RopeConfig, head_dim: int, num_turns: float) -> float:
    """The (fractional) pair that turns num_turns times within the original context."""
    wavelength = rope.original_max_position_embeddings / (num_turns * 2 * math.pi)
    return head_dim * math.log(wavelength) / (2 * math.log(rope.theta))


_MIN_SHARED = 0.25  # of the vocabulary, for the compact head to pay


class OutputHead:
    """logits = hidden @ weight.T, exactly, without repeating equal rows.

    The rows of tokens that training never met may all be alike (nano's are). Of the rows equal
    to the last one only the first is computed.
    """

    def __init__(self, weight: Tensor, dtype: torch.dtype) -> None:
        """`weight` (vocabulary, hidden), in any float dtype."""
        is_shared = (weight == weight[-1]).all(dim=-1)
        self._columns: Columns | None = None
        if is_shared.sum() >= _MIN_SHARED * len(weight):
            self._columns = _columns(is_shared)
            weight = weight[self._columns.token_ids]
        weight = weight.to(dtype)
        self._linear = linear(weight, None, is_read_always=True)
        self.num_weights = weight.numel()
        screen = Screen(weight) if is_screened(*weight.shape) else None
        self._screen = screen if screen is not None and screen.is_finite else None

    def __call__(self, hidden: Tensor) -> Logits:
        """hidden (rows, hidden_size) -> logits; of few rows, computed when they are looked at."""
        if self._screen is None or not 0 < len(hidden) <= MAX_ROWS:
            return Logits(self._linear(hidden).float(), self._columns)
        return LateLogits(self._linear, self._screen, hidden, self._columns)


def _columns(is_shared: Tensor) -> Columns:
    first = int(is_shared.nonzero()[0])
    is_kept = ~is_shared
    is_kept[first] = True
    shared = int(is_kept[:first].sum())
    return Columns(is_kept.nonzero().squeeze(-1), shared, len(is_shared))


@dataclass(frozen=True, slots=True)
class Columns:
    """Which token each column scores, where tokens that always score alike share one."""

    token_ids: Tensor  # (columns), ascending
    shared: int  # the column of the first of the tokens that share it
    vocab_size: int

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


class Logits:
    """Scores of the next token, a row for each sampled sequence."""

    def __init__(self, values: Tensor, columns: Columns | None = None) -> None:
        """`values` (rows, columns) float32; without `columns` column i scores token i."""
        self._values, self.columns = values, columns

    @property
    def values(self) -> Tensor:
        """The scores: (rows, columns) float32."""
        return self._values

    def computed(self) -> Logits:
        """The same, where more than the best tokens will be asked for."""
        return self

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
        """A copy of one row, so that sampling leaves the others as they are."""
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


class LateLogits(Logits):
    """Those that are not computed where only the best tokens are asked for."""

    def __init__(
        self, head: AnyLinear, screen: Screen, hidden: Tensor, columns: Columns | None
    ) -> None:
        """hidden (rows, hidden_size): the states that `head` scores and `screen` sifts."""
        self._head, self._screen, self._hidden, self.columns = head, screen, hidden, columns

    @cached_property
    @torch.inference_mode()
    def values(self) -> Tensor:
        """The scores: (rows, columns) float32."""
        return self._head(self._hidden).float()

    def computed(self) -> Logits:
        """The same, computed."""
        return Logits(self.values, self.columns)

    def best(self) -> tuple[list[int], NDArray[np.float32]]:
        """The first of the best tokens of each row, and its score, computed in float32."""
        found = self._screen.best(self._hidden)
        if found is None:
            return super().best()
        columns, scores = found
        return self._tokens(columns), scores
