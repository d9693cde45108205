"""Matrix times weight: through oneDNN's own weight layout on CPU, plainly elsewhere."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_TUNED_ROWS = 32  # the batch the layout suits best; any other is computed as well
# The longer call costs more than the layout saves with a smaller weight and fewer rows.
_MIN_PACKED_WEIGHT = 262_144
_MIN_PACKED_ROWS = 8


class Linear:
    """y = x @ weight.T + bias, with weight (out, in) and bias (out)."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._bias = bias
        self._packed = _pack(weight) if can_pack(weight) else None
        is_small = weight.numel() < _MIN_PACKED_WEIGHT
        self._plain = weight.contiguous() if self._packed is None or is_small else None

    def __call__(self, x: Tensor) -> Tensor:
        """x (rows, in) -> (rows, out)."""
        if self._plain is not None and (self._packed is None or len(x) < _MIN_PACKED_ROWS):
            return F.linear(x, self._plain, self._bias)
        y: Tensor = torch.ops.mkldnn._linear_pointwise.default(
            x, self._packed, self._bias, "none", [], ""
        )
        return y


def can_pack(weight: Tensor) -> bool:
    """Whether oneDNN can hold this weight in its own layout (the one torch.compile uses)."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if weight.dtype == torch.bfloat16:  # needs AVX-512 or AVX_NE_CONVERT
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32


def _pack(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight.default(
        weight.contiguous(), _TUNED_ROWS
    )
    return packed
