"""K/V in 8 bits: the bytes of e4m3 numbers, three bits of mantissa, at most 448."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from engines.native.config import NativeConfig

STORED: Final = torch.uint8  # so that copies and index operations know the type
_LARGEST: Final = torch.finfo(torch.float8_e4m3fn).max


def cache_dtype(config: NativeConfig) -> torch.dtype:
    """What the blocks hold."""
    if config.kv_dtype == "fp8":
        return STORED
    dtype: torch.dtype = getattr(torch, config.dtype)
    return dtype


def stored(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Values as a cache of this type holds them."""
    if dtype != STORED:
        return values.to(dtype)
    return values.clamp(-_LARGEST, _LARGEST).to(torch.float8_e4m3fn).view(STORED)


def read(cached: Tensor, dtype: torch.dtype) -> Tensor:
    """What a cache holds, in the type that is computed."""
    if cached.dtype == STORED:
        cached = cached.view(torch.float8_e4m3fn)
    return cached.to(dtype)
