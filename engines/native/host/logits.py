"""Scores of the next token in host memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


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
