"""`harmonium merge`: the merged tensors are those that PEFT makes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from engines.native.config import ModelConfig
from engines.native.mxfp4 import dequantise, quantise
from engines.native.weights import CheckpointTensors, tensor_specs
from parts.lora.command import merge
from tests.engines.native.small_model import small_config, write_small

RANK, ALPHA = 4, 16
LAYER = "model.layers.1"
EXPERTS = f"{LAYER}.mlp.experts"
K_PROJ = f"base_model.model.{LAYER}.self_attn.k_proj"


def config() -> dict[str, Any]:
    return small_config(300) | {"num_hidden_layers": 2, "intermediate_size": 64}


def in_bf16(tensors: dict[str, torch.Tensor]) -> None:
    tensors.update({name: each.bfloat16() for name, each in tensors.items()})


def packed(tensors: dict[str, torch.Tensor]) -> None:
    in_bf16(tensors)
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        blocks, scales = quantise(tensors.pop(name).transpose(1, 2))
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = write_small(tmp_path / "base", config(), packed)
    described = config() | {"quantization_config": {"quant_method": "mxfp4"}}
    (folder / "config.json").write_text(json.dumps(described))
    (folder / "tokenizer.json").write_text("{}")
    return folder


def matrices(*, is_swapped: bool = False) -> dict[str, torch.Tensor]:
    """An adapter of q_proj and both matrices of experts in one layer."""
    generator = torch.Generator().manual_seed(1)

    def pair(module: str, num_in: int, num_out: int, experts: int = 1) -> dict[str, torch.Tensor]:
        sides = (num_out, num_in) if is_swapped and experts > 1 else (num_in, num_out)
        name = f"base_model.model.{module}"
        shapes = (experts * RANK, sides[0]), (sides[1], experts * RANK)
        a, b = (torch.randn(shape, generator=generator) * 0.3 for shape in shapes)
        return {f"{name}.lora_A.weight": a, f"{name}.lora_B.weight": b}

    return {
        **pair(f"{LAYER}.self_attn.q_proj", 32, 32),
        **pair(f"{EXPERTS}.base_layer", 32, 128, 4),
        **pair(EXPERTS, 64, 32, 4),
    }


def write_adapter(folder: Path, tensors: dict[str, torch.Tensor], **changes: Any) -> Path:
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    described = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "bias": "none"} | changes
    (folder / "adapter_config.json").write_text(json.dumps(described))
    return folder


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    return write_adapter(tmp_path / "adapter", matrices())


def run(*arguments: Any) -> str:
    result = CliRunner().invoke(merge, [str(each) for each in arguments], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    assert result.return_value == 0
    return result.output


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    specs = tensor_specs(ModelConfig.from_dir(folder))
    found = CheckpointTensors(folder, specs)
    return {name: found.tensor(name, torch.float32).contiguous() for name in specs}


def delta(of: dict[str, torch.Tensor], module: str, experts: int) -> torch.Tensor:
    """PEFT's sum, written out: (experts, in, out)."""
    a, b = (of[f"base_model.model.{module}.lora_{each}.weight"] for each in "AB")
    by_expert = b.reshape(b.shape[0], RANK, experts), a.reshape(experts, RANK, -1)
    return torch.einsum("ore,eri->eio", *by_expert) * ALPHA / RANK


def test_all_that_the_adapter_names_is_changed_and_nothing_else(
    checkpoint: Path, adapter: Path, tmp_path: Path
) -> None:
    said = run(checkpoint, adapter, tmp_path / "merged", "--bf16")
    before, after = tensors_of(checkpoint), tensors_of(tmp_path / "merged")
    adapted = matrices()
    wanted = {
        f"{LAYER}.self_attn.q_proj.weight": delta(adapted, f"{LAYER}.self_attn.q_proj", 1)[0].T,
        f"{EXPERTS}.gate_up_proj": delta(adapted, f"{EXPERTS}.base_layer", 4),
        f"{EXPERTS}.down_proj": delta(adapted, EXPERTS, 4),
    }
    for name, value in before.items():
        assert torch.equal(after[name], (value + wanted.get(name, 0)).bfloat16().float()), name
    assert "3 tensors changed" in said
    assert "quantization_config" not in json.loads((tmp_path / "merged/config.json").read_text())
    assert (tmp_path / "merged/tokenizer.json").exists()


def test_packed_experts_are_rounded_and_what_rounding_keeps_is_told(
    checkpoint: Path, adapter: Path, tmp_path: Path
) -> None:
    said = run(checkpoint, adapter, tmp_path / "merged")
    before, after = (
        load_file(each / "model.safetensors") for each in (checkpoint, tmp_path / "merged")
    )
    assert before.keys() == after.keys()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert {name.removeprefix(LAYER) for name in changed} == {
        ".self_attn.q_proj.weight",
        *(f".mlp.experts.gate_up_proj_{part}" for part in ("blocks", "scales")),
        *(f".mlp.experts.down_proj_{part}" for part in ("blocks", "scales")),
    }
    name = f"{EXPERTS}.down_proj"
    exact = dequantise(before[f"{name}_blocks"], before[f"{name}_scales"], torch.float32)
    exact += delta(matrices(), EXPERTS, 4).transpose(1, 2)
    assert torch.equal(after[f"{name}_blocks"], quantise(exact)[0])
    assert torch.equal(after[f"{name}_scales"], quantise(exact)[1])
    assert "MXFP4 keeps 1" in said or "MXFP4 keeps 9" in said  # a change of the weights' own size


def test_shards_keep_their_tensors(checkpoint: Path, adapter: Path, tmp_path: Path) -> None:
    tensors = load_file(checkpoint / "model.safetensors")
    (checkpoint / "model.safetensors").unlink()
    places = {name: f"model-{'blocks' in name:d}.safetensors" for name in tensors}
    for file in {*places.values()}:
        save_file({n: t for n, t in tensors.items() if places[n] == file}, checkpoint / file)
    index = {"metadata": {}, "weight_map": places}
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps(index))
    run(checkpoint, adapter, tmp_path / "merged")
    run(checkpoint, adapter, tmp_path / "unpacked", "--bf16")
    both = tensors_of(tmp_path / "merged"), tensors_of(tmp_path / "unpacked")
    assert torch.equal(
        both[0][f"{LAYER}.self_attn.q_proj.weight"], both[1][f"{LAYER}.self_attn.q_proj.weight"]
    )


def test_experts_by_outputs_are_told_by_their_shape(checkpoint: Path, tmp_path: Path) -> None:
    adapted = matrices(is_swapped=True)
    write_adapter(tmp_path / "swapped", adapted)
    run(checkpoint, tmp_path / "swapped", tmp_path / "merged", "--bf16")
    name = f"{EXPERTS}.gate_up_proj"
    before, after = tensors_of(checkpoint)[name], tensors_of(tmp_path / "merged")[name]
    change = delta(adapted, f"{EXPERTS}.base_layer", 4).transpose(1, 2)
    assert torch.equal(after, (before + change).bfloat16().float())


def test_scaling_follows_the_pattern_and_rslora(checkpoint: Path, tmp_path: Path) -> None:
    changes = {"alpha_pattern": {"q_proj": 2 * ALPHA}, "use_rslora": True}
    write_adapter(tmp_path / "scaled", matrices(), **changes)
    run(checkpoint, tmp_path / "scaled", tmp_path / "merged", "--bf16")
    name = f"{LAYER}.self_attn.q_proj.weight"
    before, after = tensors_of(checkpoint)[name], tensors_of(tmp_path / "merged")[name]
    change = delta(matrices(), f"{LAYER}.self_attn.q_proj", 1)[0].T * 2 * RANK**0.5
    assert torch.allclose(after, before + change, rtol=1 / 128, atol=1e-3)


@pytest.mark.parametrize(
    ("changes", "extra", "said"),
    [
        ({"use_dora": True}, {}, "adapter_config.json: use_dora is True"),
        ({"bias": "all"}, {}, "bias is 'all'"),
        ({"peft_type": "IA3"}, {}, "peft_type is 'IA3'"),
        ({"modules_to_save": ["lm_head"]}, {}, "modules_to_save is"),
        ({}, {"base_model.model.model.embed_tokens.lora_embedding_A": (4, 300)}, "embed_tokens"),
        ({}, {f"{K_PROJ}.lora_A.weight": (4, 32)}, "only one of"),
        (
            {},
            {f"{K_PROJ}.lora_{each}.weight": (8, 8) for each in "AB"},
            "k_proj has shapes [8, 8] and [8, 8]: no tensor of this checkpoint",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_merged_is_refused_by_name(
    checkpoint: Path, tmp_path: Path, changes: dict[str, Any], extra: dict[str, Any], said: str
) -> None:
    tensors = matrices() | {name: torch.zeros(shape) for name, shape in extra.items()}
    write_adapter(tmp_path / "odd", tensors, **changes)
    with pytest.raises(click.ClickException, match=re.escape(said)):
        run(checkpoint, tmp_path / "odd", tmp_path / "merged")
    assert not [path for path in tmp_path.iterdir() if "merged" in path.name]


def test_a_folder_that_exists_and_a_folder_without_an_adapter_are_refused(
    checkpoint: Path, adapter: Path, tmp_path: Path
) -> None:
    with pytest.raises(click.ClickException, match="exists; name a new folder"):
        run(checkpoint, adapter, adapter)
    with pytest.raises(click.ClickException, match=r"has no adapter_model\.safetensors"):
        run(checkpoint, checkpoint, tmp_path / "merged")
