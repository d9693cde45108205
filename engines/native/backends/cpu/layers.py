"""The plain layers: linear, normalisation, rotary positions, the head and its logits.

The checkpoint rotates pairs (i, i + head_dim / 2) (engines/native/rope.py). Loading interleaves the
rows of the query and key projections (`interleave_halves`), so that a pair lies side by side and
one complex product rotates it; attention scores do not change, as both sides are permuted alike.

Weights are in the layout and the type that this CPU multiplies fastest. Many CPUs have no
arithmetic for bfloat16; torch's products of it are then eight times slower than those of float32.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from engines.native.host.logits import Columns, Logits

_TUNED_ROWS = 32  # the batch the layout suits best; any other is computed as well
# With few rows the longer call costs more than the layout saves: as few as these, by the number of
# values of the weight, which is then kept plainly too. Of a larger one a second copy is too dear.
_PLAIN_ROWS = ((262_144, 7), (4_194_304, 1))


def has_bfloat16() -> bool:
    """Whether oneDNN multiplies bfloat16 on this CPU: it needs AVX-512 or AVX_NE_CONVERT."""
    mkldnn = torch.backends.mkldnn.is_available()
    return mkldnn and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def linear_bytes(num_out: int, num_in: int, dtype: torch.dtype) -> int:
    """Bytes that `Linear` keeps of a weight (num_out, num_in) of `dtype`, all copies together."""
    size = num_out * num_in
    num_copies = 1 + (can_pack(dtype) and _plain_rows(size) > 0)
    return num_copies * size * dtype.itemsize


class Linear:
    """y = x @ weight.T + bias, with weight (out, in) and bias (out), all of one type."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._bias = bias
        self._packed = _pack(weight) if can_pack(weight.dtype) else None
        self._plain_rows = _plain_rows(weight.numel())
        is_plain = self._packed is None or self._plain_rows > 0
        self._plain = _for_one_row(weight) if is_plain else None

    def __call__(self, x: Tensor) -> Tensor:
        """x (rows, in) -> (rows, out)."""
        if self._plain is not None and (self._packed is None or len(x) <= self._plain_rows):
            return F.linear(x, self._plain, self._bias)
        return _times_packed(x, self._packed, self._bias)


def can_pack(dtype: torch.dtype) -> bool:
    """Whether oneDNN can hold a weight in its own layout (the one torch.compile uses)."""
    if not torch.backends.mkldnn.is_available():
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and has_bfloat16())


def _plain_rows(size: int) -> int:
    """Largest batch for which a weight of this size stays unpacked."""
    return next((rows for limit, rows in _PLAIN_ROWS if size < limit), 0)


def _for_one_row(weight: Tensor) -> Tensor:
    """The same values, lying in memory as a product with one row reads them fastest.

    Where it widens, columns that are added up; else rows that are summed, each by itself.
    """
    is_wider = weight.dtype == torch.float32 and len(weight) > weight.shape[1]
    return weight.t().contiguous().t() if is_wider else weight.contiguous()


def _pack(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight.default(
        weight.contiguous(), _TUNED_ROWS
    )
    return packed


def _times_packed(x: Tensor, packed: Tensor | None, bias: Tensor | None) -> Tensor:
    y: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, packed, bias, "none", [], "")
    return y


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
