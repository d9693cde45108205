"""MXFP4 weights keep every bit on their way into the kernels' order."""

import pytest
import torch

from engines.native.backends.cuda.weights import fragment_order


@pytest.mark.parametrize("is_gate_up", [False, True])
@pytest.mark.parametrize("inputs", [160, 192, 384])
def test_unpacking_gives_back_every_bit(inputs: int, is_gate_up: bool) -> None:
    blocks = torch.randint(0, 256, (3, 48, inputs // 32, 16), dtype=torch.uint8)
    scales = torch.randint(0, 129, (3, 48, inputs // 32), dtype=torch.uint8)
    scales[scales < 1] = 100
    packed = fragment_order.pack(blocks, scales, is_gate_up=is_gate_up)
    codes, exponents = fragment_order.unpack(*packed, is_gate_up=is_gate_up)
    expected = torch.stack((blocks & 15, blocks >> 4), dim=-1).flatten(-3)
    assert torch.equal(codes[..., :inputs], expected)
    assert torch.equal(exponents[..., : inputs // 32], scales)
    assert not codes[..., inputs:].any()


def test_a_scale_that_the_kernels_cannot_hold_is_refused() -> None:
    blocks = torch.zeros((1, 16, 1, 16), dtype=torch.uint8)
    scales = torch.full((1, 16, 1), 129, dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"scale is 2\*\*2"):
        fragment_order.pack(blocks, scales)
