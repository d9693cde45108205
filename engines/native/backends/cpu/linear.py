"""Matrix times weight, by the layout and the type that this CPU multiplies fastest.

Many CPUs have no arithmetic for bfloat16, and torch's products of it are then eight times slower
than those of float32. There weights of bfloat16 stay as they are, and all else is float32.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_TUNED_ROWS = 32  # the batch the layout suits best; any other is computed as well
# With few rows the longer call costs more than the layout saves: as few as these, by the number of
# values of the weight, which is then kept plainly too. Of a larger one a second copy is too dear.
_PLAIN_ROWS = ((262_144, 7), (4_194_304, 1))
_MAX_COPIED = 4_194_304  # values of a weight of bfloat16 that is kept as float32 too
_WIDENED_AT_ONCE = 1_048_576  # values of a larger one: they should stay in a cache


def has_bfloat16() -> bool:
    """Whether oneDNN multiplies bfloat16 on this CPU: it needs AVX-512 or AVX_NE_CONVERT."""
    mkldnn = torch.backends.mkldnn.is_available()
    return mkldnn and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def computed_dtype(dtype: torch.dtype) -> torch.dtype:
    """What activations are computed in on this CPU where weights are kept as `dtype`."""
    return dtype if dtype != torch.bfloat16 or has_bfloat16() else torch.float32


def linear(weight: Tensor, bias: Tensor | None, *, is_read_always: bool = False) -> AnyLinear:
    """y = x @ weight.T + bias, with weight (out, in) and bias (out); x and y as computed_dtype.

    `is_read_always`: by each step, however few rows it has; so a copy of float32 pays.
    """
    computed = computed_dtype(weight.dtype)
    bias = None if bias is None else bias.to(computed)
    if weight.dtype == computed:
        return Linear(weight, bias)
    return NarrowLinear(weight, bias, is_read_always or weight.numel() <= _MAX_COPIED)


def held_bytes(
    num_out: int, num_in: int, dtype: torch.dtype, *, is_read_always: bool = False
) -> int:
    """What `linear` keeps of a weight (num_out, num_in) of `dtype`, all its copies together."""
    size, computed = num_out * num_in, computed_dtype(dtype)
    if dtype == computed:
        num_copies = 1 + (can_pack(dtype) and _plain_rows(size) > 0)
        return num_copies * size * dtype.itemsize
    is_copied = can_pack(computed) and (is_read_always or size <= _MAX_COPIED)
    return size * (dtype.itemsize + is_copied * computed.itemsize)


class Linear:
    """A product in the type of its weight."""

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


class NarrowLinear:
    """A product in float32 with a weight of bfloat16, on a CPU that multiplies only float32.

    With one row, reading the weight takes the time, and half as many bytes are read.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, is_copied: bool) -> None:
        """`is_copied`: for more rows than one a copy in float32 is kept; else it is made anew."""
        self._weight, self._bias = weight.contiguous(), bias
        self._packed = _pack(weight.float()) if is_copied and can_pack(torch.float32) else None

    def __call__(self, x: Tensor) -> Tensor:
        """x (rows, in) -> (rows, out), both float32."""
        if self._packed is not None and len(x) > 1:
            return _times_packed(x, self._packed, self._bias)
        y = self._one_row(x) if len(x) == 1 else self._in_parts(x)
        return y if self._bias is None else y.add_(self._bias)

    def _one_row(self, x: Tensor) -> Tensor:
        return F.linear(x.to(self._weight.dtype), self._weight).float()

    def _in_parts(self, x: Tensor) -> Tensor:
        num_out, num_in = self._weight.shape
        y = x.new_empty(len(x), num_out)
        size = max(1, _WIDENED_AT_ONCE // num_in)
        widened = x.new_empty(size, num_in)
        for start in range(0, num_out, size):
            part = self._weight[start : start + size]
            rows = widened[: len(part)].copy_(part)
            torch.mm(x, rows.t(), out=y[:, start : start + len(part)])
        return y


AnyLinear = Linear | NarrowLinear


def can_pack(dtype: torch.dtype) -> bool:
    """Whether oneDNN can hold a weight in its own layout (the one torch.compile uses)."""
    if not torch.backends.mkldnn.is_available():
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and has_bfloat16())


def _plain_rows(size: int) -> int:
    """Up to how many rows a weight of so many values is read as it is, beside being packed."""
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
