"""A product is the same whichever of a weight's layouts computes it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from engines.native.backends.cpu.layers import Linear
from tests.close import assert_close


@pytest.mark.parametrize("num_rows", [1, 7, 8, 40])
@pytest.mark.parametrize("num_out", [48, 200, 3000, 45_000])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.25)], ids=str
)
def test_rows_times_weight_plus_bias(
    num_rows: int, num_out: int, dtype: torch.dtype, tolerance: float
) -> None:
    generator = torch.Generator().manual_seed(num_rows)
    x, weight, bias = (
        torch.randn(shape, generator=generator).to(dtype)
        for shape in [(num_rows, 96), (num_out, 96), (num_out,)]
    )
    expected = F.linear(x.double(), weight.double(), bias.double())
    with torch.inference_mode():
        found = Linear(weight, bias)(x)
    assert_close(found.double(), expected, atol=tolerance, rtol=0)
