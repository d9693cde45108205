"""MXFP4: blocks of 32 four-bit floats (e2m1) that share one power-of-two scale (OCP MX 1.0).

Published checkpoints keep a matrix of experts as `<name>_blocks`, uint8 (experts, out, in / 32, 16)
with the even input in the low nibble, and `<name>_scales`, uint8 (experts, out, in / 32): exponents
raised by 127 (e8m0).

`quantise` rounds as transformers does for its Mxfp4Config (triton_kernels' `downcast_to_mxfp`):
the scale is the least power of two with which no value of the block exceeds 6, the largest e2m1,
and values go to the nearest, ties to even. (Early versions of triton_kernels rounded ties up. The
algorithm of the standard's section 6.3 takes the exponent of the largest value and cuts what lies
between 6 and 8 times the scale.) All of these agree on whatever MXFP4 can hold, so that a
checkpoint that was unpacked comes back with the same values to the bit.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

ROUNDING: Final = 1  # raised when `quantise` gives other bytes: kept weights are made again
BLOCK_SIZE: Final = 32  # values that share a scale
BYTES_PER_BLOCK: Final = BLOCK_SIZE // 2
_SCALE_BIAS: Final = 127
_VALUES: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_LARGEST: Final = 0.75  # the mantissa of 6, as torch.frexp gives it
_LARGEST_EXPONENT: Final = 3  # and its exponent
_MIDDLES: Final = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)  # halfway from one code to the next


def quantise(values: Tensor) -> tuple[Tensor, Tensor]:
    """Round (..., rows, inputs) to MXFP4, in blocks along the inputs, which are a multiple of 32.

    Returns blocks, uint8 (..., rows, inputs / 32, 16), and scales, uint8 (..., rows, inputs / 32).
    ValueError if a value is not finite.
    """
    groups = values.to(torch.bfloat16).contiguous().float().unflatten(-1, (-1, BLOCK_SIZE))
    largest = groups.abs().amax(dim=-1)
    if not bool(torch.isfinite(largest).all()):
        raise ValueError("it has values that are not finite numbers")
    mantissas, exponents = torch.frexp(largest)
    exponents = exponents - _LARGEST_EXPONENT + (mantissas > _LARGEST).int()
    exponents = exponents.clamp_(min=-_SCALE_BIAS)
    codes = _codes(groups, exponents.unsqueeze(-1))
    scales = torch.where(largest == 0, 0, exponents + _SCALE_BIAS).to(torch.uint8)
    return codes[..., 0::2] | (codes[..., 1::2] << 4), scales


def _codes(groups: Tensor, exponents: Tensor) -> Tensor:
    """The nearest e2m1 code of each value over its scale."""
    sizes = groups.abs() * torch.ldexp(torch.ones_like(exponents, dtype=torch.float32), -exponents)
    middles = torch.tensor(_MIDDLES, device=groups.device)
    beyond = torch.nextafter(middles, middles.new_tensor(torch.inf))
    goes_up = torch.arange(len(_MIDDLES), device=groups.device) % 2 == 1  # to the even code
    least = torch.where(goes_up, middles, beyond)  # of each code but the first
    codes = torch.bucketize(sizes, least, out_int32=True, right=True).to(torch.uint8)
    return codes | (torch.signbit(groups).to(torch.uint8) << 3)


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
