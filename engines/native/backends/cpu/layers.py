"""The plain layers: normalisation, rotary positions, the head and its logits.

The checkpoint rotates pairs (i, i + head_dim / 2) (engines/native/rope.py). Loading interleaves the
rows of the query and key projections (`interleave_halves`), so that a pair lies side by side and
one complex product rotates it; attention scores do not change, as both sides are permuted alike.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from engines.native.backends.cpu.linear import Linear
from engines.native.host.logits import Columns, Logits


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


def rotate(x: Tensor, rotations: Tensor) -> None:
    """Rotate x (tokens, heads, head_dim) in place by rotations (tokens, head_dim / 2)."""
    rotations = rotations.unsqueeze(1)
    if x.dtype == torch.float32:
        torch.view_as_complex(x.unflatten(-1, (-1, 2))).mul_(rotations)
        return
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    x.copy_(torch.view_as_real(pairs * rotations).flatten(-2))


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
        self._linear = Linear(weight, None)
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
