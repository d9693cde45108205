"""MXFP4 experts: bit for bit what transformers unpacks, and the same model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from engines.errors import EngineStartError
from engines.native.mxfp4 import dequantise
from tests.close import assert_close


def unpacked_by_transformers(blocks: Tensor, scales: Tensor, **options: Any) -> Tensor:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    unpacked: Tensor = convert_moe_packed_tensors(blocks, scales, **options)
    return unpacked


def random_bytes(*shape: int, low: int = 0, high: int = 256) -> Tensor:
    return torch.randint(low, high, shape, dtype=torch.uint8)


@pytest.mark.heavy  # loads transformers
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_unpacking_agrees_bit_for_bit(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    blocks = random_bytes(3, 256, 8, 16)
    scales = torch.arange(3 * 256 * 8).remainder(256).to(torch.uint8).view(3, 256, 8)
    ours = dequantise(blocks, scales, dtype).transpose(1, 2).contiguous()
    theirs = unpacked_by_transformers(blocks, scales, dtype=dtype)
    bits = torch.int32 if dtype == torch.float32 else torch.int16
    assert torch.equal(ours.view(bits), theirs.view(bits))


def pack_experts(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Replace the experts by random MXFP4; also return the same model unpacked to bf16."""
    packed, plain = dict(tensors), dict(tensors)
    for name, tensor in tensors.items():
        if name.endswith(("gate_up_proj", "down_proj")):
            experts, num_in, num_out = tensor.shape
            blocks = random_bytes(experts, num_out, num_in // 32, 16)
            scales = random_bytes(experts, num_out, num_in // 32, low=122, high=127)
            del packed[name]
            packed |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
            plain[name] = unpacked_by_transformers(blocks, scales)
    return packed, plain


@pytest.mark.parametrize("num_experts", [8, 16])
def test_packed_checkpoint_equals_its_unpacked_twin(
    make_checkpoint: Any, drive: Any, token_ids: Any, num_experts: int
) -> None:
    checkpoint = make_checkpoint(num_local_experts=num_experts)
    packed, plain = pack_experts(checkpoint.tensors)
    checkpoint.oracle.load_state_dict(plain)
    ids, logits = token_ids(30), []
    for tensors in (packed, plain):
        checkpoint.tensors = tensors
        checkpoint.write()
        driver = drive(checkpoint, checkpoint.load())
        logits.append(driver.step((driver.sequence(ids), 30))[0])
    assert_close(logits[0], logits[1], atol=1e-5, rtol=0.0)
    assert_close(logits[0], checkpoint.logits(ids)[-1], atol=1e-4, rtol=0.0)


def test_missing_scales_are_named(make_checkpoint: Any) -> None:
    checkpoint = make_checkpoint()
    checkpoint.tensors, _ = pack_experts(checkpoint.tensors)
    del checkpoint.tensors["model.layers.1.mlp.experts.down_proj_scales"]
    checkpoint.write()
    with pytest.raises(EngineStartError, match=r"layers\.1\.mlp\.experts\.down_proj_scales"):
        checkpoint.load()
