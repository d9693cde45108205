"""A published checkpoint becomes the kernels' weights, no bit lost."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from engines.native.config import ModelConfig
from engines.native.mxfp4 import quantise
from engines.native.weights import CheckpointTensors, tensor_specs
from tests.engines.native.cuda.kernels.kernel_fixtures import model_config
from tests.engines.native.cuda.reference import plain_rows
from tools.benchmarks.published import write_published

from engines.native.backends.cuda.weights import fragment_order  # isort: skip
from engines.native.backends.cuda.weights import load, packed_files  # isort: skip
from engines.native.backends.cuda.weights.load import load_weights  # isort: skip
from engines.native.backends.cuda.weights.model import ModelWeights  # isort: skip

CONFIG = replace(
    model_config(),
    hidden_size=64,
    intermediate_size=32,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    num_local_experts=3,
    num_experts_per_tok=2,
    vocab_size=64,
)


def write(folder: Path, *, is_packed: bool) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    for name, spec in tensor_specs(CONFIG).items():
        if spec.is_packable and is_packed:
            experts, num_in, num_out = spec.shape
            groups = (experts, num_out, num_in // 32)
            tensors[f"{name}_blocks"] = torch.randint(0, 256, (*groups, 16), dtype=torch.uint8)
            tensors[f"{name}_scales"] = torch.randint(100, 129, groups, dtype=torch.uint8)
        else:
            tensors[name] = torch.randn(spec.shape).bfloat16()
    save_file(tensors, folder / "model.safetensors")
    return tensors


def test_experts_that_come_in_pieces_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, is_packed=True)
    checkpoint = CheckpointTensors(tmp_path, tensor_specs(CONFIG))
    name, device = "model.layers.0.mlp.experts.gate_up_proj", torch.device("cpu")
    pieces = [*checkpoint.packed(name, device, 1)]
    assert len(pieces) == CONFIG.num_local_experts
    whole = [*checkpoint.packed(name, device, CONFIG.num_local_experts)]
    for together, alone in zip(whole[0], zip(*pieces, strict=True), strict=True):
        assert torch.equal(torch.cat(alone), together)
    at_once = load_weights(checkpoint, CONFIG, 8, device)
    monkeypatch.setattr(load, "_EXPERTS_AT_ONCE", 1)
    one_by_one = load_weights(checkpoint, CONFIG, 8, device)
    assert torch.equal(at_once.layers[0].down.words, one_by_one.layers[0].down.words)
    assert torch.equal(at_once.layers[0].down.scales, one_by_one.layers[0].down.scales)


def held(weights: ModelWeights) -> int:
    """Bytes of every tensor that the checkpoint gave."""
    found = [weights.embedding, weights.head, weights.norm]
    for layer in weights.layers:
        for each in (layer, layer.gate_up, layer.down):
            found += [
                value
                for f in fields(each)
                if isinstance(value := getattr(each, f.name), torch.Tensor)
            ]
    return sum(tensor.nbytes for tensor in found)


def test_every_tensor_arrives(tmp_path: Path) -> None:
    tensors = write(tmp_path, is_packed=True)
    checkpoint = CheckpointTensors(tmp_path, tensor_specs(CONFIG))
    weights = load_weights(checkpoint, CONFIG, 8, torch.device("cpu"))
    assert packed_files.num_bytes(checkpoint, CONFIG) == held(weights)
    assert torch.equal(weights.head, tensors["lm_head.weight"])
    for i, layer in enumerate(weights.layers):
        prefix = f"model.layers.{i}."
        parts = [tensors[f"{prefix}self_attn.{name}_proj.weight"] for name in "qkv"]
        assert torch.equal(layer.qkv, torch.cat(parts))
        assert torch.equal(layer.router, tensors[f"{prefix}mlp.router.weight"])
        for name, packed in (("gate_up", layer.gate_up), ("down", layer.down)):
            codes, exponents = fragment_order.unpack(
                packed.words, packed.scales, is_gate_up=name == "gate_up"
            )
            stored = tensors[f"{prefix}mlp.experts.{name}_proj_blocks"]
            expected = torch.stack((stored & 15, stored >> 4), dim=-1).flatten(-3)
            inputs = expected.shape[-1]
            assert torch.equal(codes[..., :inputs], expected)
            scales = tensors[f"{prefix}mlp.experts.{name}_proj_scales"]
            assert torch.equal(exponents[..., : inputs // 32], scales)
            assert torch.equal(packed.bias, tensors[f"{prefix}mlp.experts.{name}_proj_bias"])


def test_experts_that_are_not_packed_keep_every_bit_too(tmp_path: Path) -> None:
    tensors = write(tmp_path, is_packed=False)
    checkpoint = CheckpointTensors(tmp_path, tensor_specs(CONFIG))
    weights = load_weights(checkpoint, CONFIG, 8, torch.device("cpu"))
    for i, layer in enumerate(weights.layers):
        for name, experts in (("gate_up", layer.gate_up), ("down", layer.down)):
            assert not experts.is_packed
            rows = plain_rows(experts.words, is_gate_up=name == "gate_up")
            expected = tensors[f"model.layers.{i}.mlp.experts.{name}_proj"].transpose(1, 2)
            assert torch.equal(rows[..., : expected.shape[-1]], expected)
            assert not rows[..., expected.shape[-1] :].any()


def test_rounded_experts_are_those_of_a_checkpoint_that_was_rounded_before(tmp_path: Path) -> None:
    tensors = write(tmp_path, is_packed=False)
    checkpoint = CheckpointTensors(tmp_path, tensor_specs(CONFIG), "mxfp4")
    ours = load_weights(checkpoint, CONFIG, 8, torch.device("cpu"))
    assert packed_files.num_bytes(checkpoint, CONFIG) == held(ours)
    for name in [name for name, spec in tensor_specs(CONFIG).items() if spec.is_packable]:
        blocks, scales = quantise(tensors.pop(name).transpose(1, 2))
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    save_file(tensors, tmp_path / "model.safetensors")
    packed = load_weights(
        CheckpointTensors(tmp_path, tensor_specs(CONFIG)), CONFIG, 8, torch.device("cpu")
    )
    for one, other in zip(ours.layers, packed.layers, strict=True):
        for name in ("gate_up", "down"):
            for part in ("words", "scales", "bias"):
                assert torch.equal(
                    getattr(getattr(one, name), part), getattr(getattr(other, name), part)
                )


def test_the_benchmark_writes_a_checkpoint_that_loads(tmp_path: Path) -> None:
    device = torch.device("cpu")
    write_published(tmp_path, CONFIG, device)
    assert ModelConfig.from_dir(tmp_path) == CONFIG
    checkpoint = CheckpointTensors(tmp_path, tensor_specs(CONFIG))
    weights = load_weights(checkpoint, CONFIG, 8, device)
    assert len(weights.layers) == CONFIG.num_hidden_layers
    assert checkpoint.is_packed("model.layers.0.mlp.experts.down_proj")
