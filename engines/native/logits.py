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

    def spread(self) -> Tensor:
        """A column for each token: (rows, vocabulary)."""
        if self.columns is None:
            return self.values
        shared = self.values[:, self.columns.shared, None]
        dense = shared.expand(-1, self.columns.vocab_size).contiguous()
        return dense.index_copy_(1, self.columns.token_ids, self.values)
