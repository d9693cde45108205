"""Matrix times weight: through oneDNN's own weight layout on CPU, plainly elsewhere."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

# Below this many values, packing a weight saves less than the longer call costs.
_MIN_PACKED_WEIGHT = 262_144
_TUNED_ROWS = 32  # the batch the layout suits best; any other is computed as well


class Linear:
    """y = x @ weight.T + bias, with weight (out, in) and bias (out)."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._bias = bias
        self._is_packed = can_pack(weight)
        self._weight = _pack(weight) if self._is_packed else weight.contiguous()

    def __call__(self, x: Tensor) -> Tensor:
        if not self._is_packed:
            return F.linear(x, self._weight, self._bias)
        y: Tensor = torch.ops.mkldnn._linear_pointwise.default(
            x, self._weight, self._bias, "none", [], ""
        )
        return y


def can_pack(weight: Tensor) -> bool:
    """Whether oneDNN can hold this weight in its own layout (the one torch.compile uses)."""
    return (
        weight.device.type == "cpu"
        and torch.backends.mkldnn.is_available()
        and weight.dtype in (torch.float32, torch.bfloat16)
        and weight.numel() >= _MIN_PACKED_WEIGHT
    )


def _pack(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight.default(
        weight.contiguous(), _TUNED_ROWS
    )
    return packed
