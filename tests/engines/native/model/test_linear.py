"""A product is the same whichever of a weight's layouts computes it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from engines.native.backends.cpu import linear as linear_module
from engines.native.backends.cpu.linear import Linear, linear


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
    torch.testing.assert_close(found.double(), expected, atol=tolerance, rtol=0)


@pytest.mark.parametrize("num_rows", [1, 2, 40])
@pytest.mark.parametrize("max_copied", [0, 1_000_000], ids=["in parts", "copied"])
def test_weights_of_bfloat16_where_only_float32_is_multiplied(
    monkeypatch: pytest.MonkeyPatch, num_rows: int, max_copied: int
) -> None:
    monkeypatch.setattr(linear_module, "has_bfloat16", lambda: False)
    monkeypatch.setattr(linear_module, "_MAX_COPIED", max_copied)
    monkeypatch.setattr(linear_module, "_WIDENED_AT_ONCE", 700)  # seven rows of the weight
    generator = torch.Generator().manual_seed(num_rows)
    x = torch.randn(num_rows, 96, generator=generator)
    weight, bias = (
        torch.randn(shape, generator=generator).bfloat16() for shape in [(200, 96), (200,)]
    )
    expected = F.linear(x.double(), weight.double(), bias.double())
    with torch.inference_mode():
        found = linear(weight, bias)(x)
    assert found.dtype == torch.float32
    tolerance = 0.25 if num_rows == 1 else 1e-4  # one row is rounded, as its product is
    torch.testing.assert_close(found.double(), expected, atol=tolerance, rtol=0)
