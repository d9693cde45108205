"""What a step computes for the sampler: one score for each token of the vocabulary."""

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


@dataclass(frozen=True, slots=True)
class Logits:
    """Scores of the next token, a row for each sampled sequence."""

    values: Tensor  # (rows, columns) float32
    columns: Columns | None = None  # None: column i scores token i

    def best(self) -> tuple[list[int], NDArray[np.float32]]:
        """The first of the best tokens of each row, and its score; NaN if the row has one."""
        rows: NDArray[np.float32] = self.values.cpu().numpy()  # numpy's argmax is ten times torch's
        best = rows.argmax(axis=1)  # stops at a NaN
        scores = rows[np.arange(len(rows)), best]
        if self.columns is None:
            return best.tolist(), scores
        return self.columns.token_ids[torch.from_numpy(best)].tolist(), scores

    def rows(self, is_taken: list[bool]) -> Logits:
        """The rows that are taken."""
        return Logits(self.values[torch.tensor(is_taken)], self.columns)

    def row(self, index: int) -> Logits:
        """One row alone; a copy, so that sampling leaves the others as they are."""
        return Logits(self.values[index : index + 1].clone(), self.columns)

    def spread(self) -> Tensor:
        """A column for each token: (rows, vocabulary)."""
        if self.columns is None:
            return self.values
        shared = self.values[:, self.columns.shared, None]
        dense = shared.expand(-1, self.columns.vocab_size).contiguous()
        return dense.index_copy_(1, self.columns.token_ids, self.values)
