"""From the last hidden state to logits over the vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor

from engines.native.backends.cpu.linear import Linear
from engines.native.backends.cpu.logits import Columns, Logits

_MIN_SHARED = 0.25  # of the vocabulary, for the compact head to pay


class Head:
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
        self._linear = Linear(weight.to(dtype), None)
        self.num_weights = weight.numel()

    def __call__(self, hidden: Tensor) -> Logits:
        """hidden (rows, hidden_size) -> logits."""
        return Logits(self._linear(hidden).float(), self._columns)


def _columns(is_shared: Tensor) -> Columns:
    first = int(is_shared.nonzero()[0])
    is_kept = ~is_shared
    is_kept[first] = True
    shared = int(is_kept[:first].sum())
    return Columns(is_kept.nonzero().squeeze(-1), shared, len(is_shared))
