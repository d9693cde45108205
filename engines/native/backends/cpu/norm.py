"""Root-mean-square normalisation."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


class RmsNorm:
    """x / sqrt(mean(x²) + eps) * weight over the last dimension."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        self._weight, self._eps = weight, eps

    def __call__(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self._weight.shape, self._weight, self._eps)
