"""From the last hidden state to logits over the vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor

from engines.native.layers.linear import Linear

_MIN_SHARED = 0.25  # of the vocabulary, for the compact head to pay


class Head:
    """logits = hidden @ weight.T, exactly, without repeating equal rows.

    The rows of tokens that training never met may all be alike (nano's are). Rows equal to
    the last one are computed once and copied to every token that shares it.
    """

    def __init__(self, weight: Tensor, dtype: torch.dtype) -> None:
        """`weight` (vocabulary, hidden), in any float dtype."""
        is_shared = (weight == weight[-1]).all(dim=-1)
        self._vocab_size = len(weight)
        self._own_ids: Tensor | None = None
        if is_shared.sum() >= _MIN_SHARED * self._vocab_size:
            self._own_ids = (~is_shared).nonzero().squeeze(-1)
            weight = torch.cat((weight[self._own_ids], weight[-1:]))
        self._linear = Linear(weight.to(dtype), None)
        self.num_weights = weight.numel()

    def __call__(self, hidden: Tensor) -> Tensor:
        """hidden (rows, hidden_size) -> float32 logits (rows, vocabulary)."""
        logits = self._linear(hidden).float()
        if self._own_ids is None:
            return logits
        shared = logits[:, -1:].expand(-1, self._vocab_size).contiguous()
        return shared.index_copy_(1, self._own_ids, logits[:, :-1])
