"""The best token without all the logits.

With few rows, the output head of a narrow model takes most of a step. A product with a copy of it
in int8 takes half the time, and says of nearly every token that it is not the best. The few that
are left are computed from the weight itself, so that the answer is exact.

For a row w of the head, its copy c and a hidden state x: |w·x - c·x| <= ‖w - c‖ ‖x‖ (Cauchy and
Schwarz), and the product of c is rounded: x and what it brings to bfloat16.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engines.native.backends.cpu.linear import computed_dtype, has_bfloat16

MAX_ROWS = 4  # with more, the product in int8 takes as long as the one in float32
_MIN_VALUES = 1 << 24  # of a head: a smaller one stays in a cache
_MAX_HIDDEN = 512  # torch multiplies wider rows of bfloat16 as fast as those of int8
_VECTOR = 64  # torch's kernel reads past the end of a row that vectors do not fill
_MAX_LEFT = 0.03  # of the vocabulary; to compute more takes as long as the whole product
_LARGEST = 127  # an int8
# Two roundings to bfloat16 by 2**-8 at most, and sums in float32, of what has the length ‖w‖ ‖x‖.
_ROUNDING = 0.01
_CODED_AT_ONCE = 1_048_576  # values that are made into int8: they should stay in a cache


def is_screened(num_tokens: int, hidden_size: int) -> bool:
    """Whether a copy pays for a head of this size on this CPU."""
    has_kernel = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
    is_narrow = hidden_size <= _MAX_HIDDEN and hidden_size % _VECTOR == 0
    is_large = num_tokens * hidden_size >= _MIN_VALUES
    return is_large and is_narrow and has_kernel and not has_bfloat16()


def held_bytes(num_tokens: int, hidden_size: int, dtype: torch.dtype) -> int:
    """What a screen keeps beside the head's product: codes, and the weight where that packs it."""
    size = num_tokens * hidden_size
    if not is_screened(num_tokens, hidden_size):
        return 0
    weight = size * dtype.itemsize if computed_dtype(dtype) == dtype else 0
    return size + num_tokens * (torch.bfloat16.itemsize + torch.float32.itemsize) + weight


class Screen:
    """An int8 copy of a head, and how far off it may be."""

    def __init__(self, weight: Tensor) -> None:
        """`weight` (vocabulary, hidden); rows of it are read later."""
        self._weight = weight
        self._codes = torch.empty(weight.shape, dtype=torch.int8)
        self._scales = torch.empty(len(weight), dtype=torch.bfloat16)
        self._slack = torch.empty(len(weight))  # times ‖x‖: how far off a product may be
        size = max(1, _CODED_AT_ONCE // weight.shape[1])
        for start in range(0, len(weight), size):
            self._code(slice(start, start + size))

    @property
    def is_finite(self) -> bool:
        """Whether the weight is: else a product of it has to be computed to be found no number."""
        return bool(self._slack.isfinite().all())

    def best(self, hidden: Tensor) -> tuple[NDArray[np.int64], NDArray[np.float32]] | None:
        """The first of the best tokens of each row of hidden (rows, hidden size), and its score.

        A score is NaN if the row has one. None if too many tokens are left to choose from.
        """
        near = torch.ops.aten._weight_int8pack_mm(hidden.bfloat16(), self._codes, self._scales)
        found = [self._best(*row) for row in zip(near.float(), hidden.float(), strict=True)]
        whole = [one for one in found if one is not None]
        if len(whole) < len(found):
            return None
        tokens, scores = zip(*whole, strict=True)
        return np.array(tokens, np.int64), np.array(scores, np.float32)

    def _best(self, near: Tensor, x: Tensor) -> tuple[int, float] | None:
        length = float(x.norm())
        likeliest = int(near.numpy().argmax())  # numpy's argmax is ten times torch's
        if not np.isfinite(length):
            return likeliest, np.nan
        least = float(near[likeliest]) - length * float(self._slack[likeliest])
        most = torch.add(near, self._slack, alpha=length).numpy()
        [left] = (most >= least).nonzero()
        if len(left) > _MAX_LEFT * len(most):
            return None
        rows = self._weight[torch.from_numpy(left)].float()
        scores = rows.mul_(x).sum(dim=1)  # each row in the same order, so that equal ones are equal
        best = int(scores.argmax())
        return int(left[best]), float(scores[best])

    def _code(self, rows: slice) -> None:
        weight = self._weight[rows].float()
        scales = (weight.abs().amax(dim=1, keepdim=True) / _LARGEST).bfloat16().float()
        codes = (weight / scales.clamp_(min=1e-30)).round_().clamp_(-_LARGEST, _LARGEST)
        self._codes[rows], self._scales[rows] = codes, scales.squeeze(1)
        off = torch.linalg.vector_norm(weight - codes * scales, dim=1)
        self._slack[rows] = off + _ROUNDING * torch.linalg.vector_norm(weight, dim=1)
