"""The product of bf16 weights with rows."""

import pytest
import torch

from tests.engines.native.cuda.kernels.kernel_fixtures import DEVICE, random, relative_error

from engines.native.backends.cuda.kernels import linear  # isort: skip
from tests.engines.native.cuda.kernels.kernel_references import linear_reference  # isort: skip
from engines.native.backends.cuda.kernels.launch import launch  # isort: skip


@pytest.mark.parametrize("is_swapped", [True, False])
def test_rows_in_several_tiles_and_inputs_in_two_parts(is_swapped: bool) -> None:
    rows, outputs, inputs, bm, bn = 20, 40, 64, 16, 32
    x = random(rows, inputs, dtype=torch.bfloat16)
    weight = random(outputs, inputs, dtype=torch.bfloat16)
    bias, wide = random(outputs, dtype=torch.bfloat16), random(rows, outputs + 8)
    y = wide[:, :outputs]  # a rank's columns of the rows of all
    before, beside = y.clone(), wide[:, outputs:].clone()
    num_tiles = -(-outputs // bn) * -(-rows // bm)
    arrivals = torch.zeros(num_tiles, dtype=torch.int32, device=DEVICE)
    launch(
        linear.rows_kernel, (num_tiles, 2), x, weight, bias, y,
        torch.full((2 * rows * outputs,), float("nan"), device=DEVICE), arrivals, outputs,
        y.stride(0), M=rows, K=inputs, BM=bm, BN=bn, BK=32, SPLITS=2, STAGES=1, PREFETCH=0,
        HAS_BIAS=True, IS_ADDED=True, IS_SWAPPED=is_swapped,
    )  # fmt: skip
    expected = linear_reference(x.double(), weight, bias) + before.double()
    assert relative_error(y, expected) < 1e-5
    assert torch.equal(wide[:, outputs:], beside)
    assert not arrivals.any()
