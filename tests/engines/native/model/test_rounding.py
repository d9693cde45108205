"""16-bit experts rounded to MXFP4: by the rule, and the model that plain torch makes of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from engines.errors import EngineStartError
from engines.native.mxfp4 import BLOCK_SIZE, dequantise, quantise
from tests.close import assert_close

E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
ZERO_BLOCK_SCALE = 0


def rounded(values: Tensor) -> Tensor:
    """The same rounding in plain torch, value by value: (..., inputs) in float32."""
    groups = values.float().unflatten(-1, (-1, BLOCK_SIZE))
    largest = groups.abs().amax(-1, keepdim=True)
    scales = torch.exp2(torch.ceil(torch.log2(largest.double() / 6))).float()
    scales = torch.where(largest == 0, 1, scales)
    distances = (groups.abs() / scales).unsqueeze(-1) - E2M1
    nearest = distances.abs() == distances.abs().amin(-1, keepdim=True)  # two of them in a tie
    even = nearest & (torch.arange(8) % 2 == 0)
    chosen = torch.where(nearest.sum(-1, keepdim=True) > 1, even, nearest).int().argmax(-1)
    return (torch.copysign(E2M1[chosen], groups) * scales).flatten(-2)


def rounded_experts(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a checkpoint with its experts rounded along their inputs."""
    return {
        name: rounded(tensor.transpose(1, 2)).transpose(1, 2).contiguous()
        if name.endswith(("gate_up_proj", "down_proj"))
        else tensor
        for name, tensor in tensors.items()
    }


def test_values_go_to_the_nearest_with_the_least_scale_that_cuts_nothing() -> None:
    torch.manual_seed(0)
    values = (torch.randn(64, 256) * torch.logspace(-30, 30, 64, base=2)[:, None]).bfloat16()
    values[0, :BLOCK_SIZE] = 0
    assert torch.equal(dequantise(*quantise(values), torch.float32), rounded(values))
    # Halfway between two values: to the one with an even code. 6 and -6 keep their scale.
    block = torch.zeros(1, BLOCK_SIZE)
    block[0, :9] = torch.tensor([6.0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -5.0])
    blocks, scales = quantise(block)
    assert scales.tolist() == [[127]]
    expected = [6.0, 0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, -4.0]
    assert dequantise(blocks, scales, torch.float32)[0, :9].tolist() == expected
    assert quantise(torch.full((1, BLOCK_SIZE), 6.0625))[1].tolist() == [[128]]
    assert quantise(torch.zeros(1, BLOCK_SIZE))[1].tolist() == [[ZERO_BLOCK_SCALE]]


@pytest.mark.parametrize("largest_code", range(1, 8))
def test_what_was_unpacked_from_mxfp4_comes_back_to_the_bit(largest_code: int) -> None:
    torch.manual_seed(largest_code)
    codes = torch.randint(0, largest_code + 1, (64, 16, BLOCK_SIZE), dtype=torch.uint8)
    codes |= torch.randint(0, 2, codes.shape, dtype=torch.uint8) << 3  # -0.0 among them
    scales = torch.randint(0, 250, (64, 16), dtype=torch.uint8)
    unpacked = dequantise(codes[..., ::2] | (codes[..., 1::2] << 4), scales, torch.bfloat16)
    again = dequantise(*quantise(unpacked), torch.bfloat16)
    assert torch.equal(again.view(torch.int16), unpacked.view(torch.int16))


@pytest.mark.parametrize("num_experts", [8, 16])  # all at once on the CPU, and each by itself
def test_logits_are_those_of_the_same_rounding_in_plain_torch(
    make_checkpoint: Any, drive: Any, token_ids: Any, num_experts: int
) -> None:
    checkpoint = make_checkpoint(num_local_experts=num_experts)
    checkpoint.tensors = {name: each.bfloat16() for name, each in checkpoint.tensors.items()}
    checkpoint.write()
    ids = token_ids(30)

    def logits(**options: Any) -> Tensor:
        driver = drive(checkpoint, checkpoint.load(**options))
        found: Tensor = driver.step((driver.sequence(ids), 30))[0]
        return found

    plain, ours = logits(), logits(quantize="mxfp4")
    checkpoint.tensors = {n: t.float() for n, t in rounded_experts(checkpoint.tensors).items()}
    checkpoint.write()
    assert torch.equal(ours, logits())
    checkpoint.oracle.load_state_dict(checkpoint.tensors)
    assert_close(ours, checkpoint.logits(ids)[-1], atol=1e-4, rtol=0.0)
    assert (ours - plain).abs().max() > 0.01  # rounding changes the model


def test_experts_that_are_stored_as_mxfp4_stay_as_they_are(
    make_checkpoint: Any, drive: Any, token_ids: Any
) -> None:
    checkpoint = make_checkpoint()
    name = "model.layers.1.mlp.experts.down_proj"
    blocks, scales = quantise(checkpoint.tensors.pop(name).transpose(1, 2))
    checkpoint.tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    checkpoint.write()
    for options in ({}, {"quantize": "mxfp4"}):
        driver = drive(checkpoint, checkpoint.load(**options))
        assert driver.step((driver.sequence(token_ids(9)), 9)).isfinite().all()


def test_what_cannot_be_rounded_is_named(make_folder: Any) -> None:
    checkpoint = make_folder()
    name = "model.layers.2.mlp.experts.gate_up_proj"
    checkpoint.tensors[name][3, 5, 7] = torch.inf
    checkpoint.write()
    with pytest.raises(EngineStartError, match=rf"{name}: it has values that are not finite"):
        checkpoint.load(quantize="mxfp4")
    with pytest.raises(EngineStartError, match="quantize is 'nvfp4'; use one of"):
        checkpoint.load(quantize="nvfp4")
    odd = make_folder(hidden_size=48)
    with pytest.raises(
        EngineStartError, match=r"has 48 inputs, not a multiple of 32.*unset NIM_QUANT"
    ):
        odd.load(quantize="mxfp4")
