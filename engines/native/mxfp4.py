"""MXFP4: blocks of 32 four-bit floats (e2m1) that share one power-of-two scale (OCP MX 1.0)."""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK_SIZE = 32  # values that share a scale
BYTES_PER_BLOCK = BLOCK_SIZE // 2
_SCALE_BIAS = 127
_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def dequantise(blocks: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """Unpack MXFP4 weights into `dtype`, exactly.

    blocks: uint8 (..., rows, groups, 16), low nibble first; scales: uint8 (..., rows, groups).
    Returns (..., rows, groups * 32).
    """
    low_high = _byte_table(dtype, blocks.device)
    pairs = low_high.index_select(0, blocks.flatten().int())  # (bytes, 2)
    values = pairs.view(*scales.shape, BLOCK_SIZE)
    exponents = (scales.int() - _SCALE_BIAS).unsqueeze(-1)
    return torch.ldexp(values, exponents, out=values).flatten(-2)


def _byte_table(dtype: torch.dtype, device: torch.device) -> Tensor:
    """The two values held by each of the 256 bytes: (256, 2)."""
    nibbles = torch.tensor(_VALUES + tuple(-v for v in _VALUES), dtype=dtype, device=device)
    codes = torch.arange(256, device=device)
    return torch.stack((nibbles[codes & 15], nibbles[codes >> 4]), dim=1)
