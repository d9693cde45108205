"""K/V in 8 bits: what is kept of a value."""

from __future__ import annotations

import pytest
import torch

from engines.native.backends.cpu.attention import read, stored
from engines.native.kv_pool import FP8


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_three_bits_of_mantissa_are_kept(dtype: torch.dtype) -> None:
    values = torch.cat((torch.randn(1000), 400 * torch.rand(1000))).to(dtype)
    cached = stored(values, FP8)
    assert cached.dtype.itemsize == 1
    found = read(cached, dtype)
    assert found.dtype == dtype
    error = (found - values).abs() / values.abs().clamp(min=2**-6)  # below that steps are equal
    assert 0.01 < error.max() <= 2**-4


def test_what_is_too_large_becomes_the_largest_and_what_is_no_number_stays_none() -> None:
    found = read(stored(torch.tensor([1e6, -1e6, torch.nan, 0.0]), FP8), torch.float32)
    assert found[[0, 1, 3]].tolist() == [448.0, -448.0, 0.0]
    assert found[2].isnan()
