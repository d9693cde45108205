"""The published checkpoints, as far as they can be known without fetching their weights.

Sums and sizes are those of profiles/data/models: of the files that the hub serves.
"""

from __future__ import annotations

import hashlib
import json
from math import prod
from typing import Any

import pytest

from engines.native.config import ModelConfig
from profiles.catalogue.catalogue import Catalogue
from profiles.catalogue.models import ArtifactFile, Model

MODELS = ("gpt-oss-20b", "gpt-oss-120b")
_BYTES = {"bf16": 2, "u8": 1}


def files_of(catalogue: Catalogue, name: str) -> tuple[Model, dict[str, ArtifactFile]]:
    model = catalogue.models[name]
    assert model.artifacts is not None
    return model, {file.name: file for file in model.artifacts.files}


def published_config(model: Model) -> dict[str, Any]:
    """The published config.json: of each value that we have, ours."""
    shape = model.shape
    kinds = ["sliding_attention", "full_attention"]
    return {
        "architectures": ["GptOssForCausalLM"],
        "attention_bias": True,
        "attention_dropout": 0.0,
        "eos_token_id": 200002,
        "experts_per_token": shape.num_experts_per_tok,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden_size,
        "initial_context_length": 4096,
        "initializer_range": 0.02,
        "intermediate_size": shape.intermediate_size,
        "layer_types": [kinds[number % 2] for number in range(shape.num_hidden_layers)],
        "max_position_embeddings": shape.max_position_embeddings,
        "model_type": "gpt_oss",
        "num_attention_heads": shape.num_attention_heads,
        "num_experts_per_tok": shape.num_experts_per_tok,
        "num_hidden_layers": shape.num_hidden_layers,
        "num_key_value_heads": shape.num_key_value_heads,
        "num_local_experts": shape.num_local_experts,
        "output_router_logits": False,
        "pad_token_id": 199999,
        "quantization_config": {
            "modules_to_not_convert": [
                "model.layers.*.self_attn",
                "model.layers.*.mlp.router",
                "model.embed_tokens",
                "lm_head",
            ],
            "quant_method": "mxfp4",
        },
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "factor": 32.0,
            "original_max_position_embeddings": 4096,
            "rope_type": "yarn",
            "truncate": False,
        },
        "rope_theta": 150000,
        "router_aux_loss_coef": 0.9,
        "sliding_window": shape.sliding_window,
        "swiglu_limit": 7.0,
        "tie_word_embeddings": False,
        "transformers_version": "4.55.0.dev0",
        "use_cache": True,
        "vocab_size": shape.vocab_size,
    }


@pytest.mark.parametrize("name", MODELS)
def test_our_config_is_the_published_one_byte_for_byte(
    catalogue: Catalogue, name: str, tmp_path: Any
) -> None:
    model, files = files_of(catalogue, name)
    text = json.dumps(published_config(model), indent=2) + "\n"
    assert len(text) == files["config.json"].size_bytes
    assert hashlib.sha256(text.encode()).hexdigest() == files["config.json"].sha256
    (tmp_path / "config.json").write_text(text)
    read = ModelConfig.from_dir(tmp_path)  # and the native engine reads it
    assert read.num_hidden_layers == model.shape.num_hidden_layers
    assert read.vocab_size == model.shape.vocab_size


def tensors_of(model: Model) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Every tensor of a published checkpoint: its type and shape."""
    shape = model.shape
    hidden, inner, experts = shape.hidden_size, shape.intermediate_size, shape.num_local_experts
    query = shape.num_attention_heads * shape.head_dim
    key = shape.num_key_value_heads * shape.head_dim
    found: dict[str, tuple[str, tuple[int, ...]]] = {
        "model.embed_tokens.weight": ("bf16", (shape.vocab_size, hidden)),
        "lm_head.weight": ("bf16", (shape.vocab_size, hidden)),
        "model.norm.weight": ("bf16", (hidden,)),
    }
    for number in range(shape.num_hidden_layers):
        layer = f"model.layers.{number}"
        for part, rows, columns in (
            ("q", query, hidden),
            ("k", key, hidden),
            ("v", key, hidden),
            ("o", hidden, query),
        ):
            found[f"{layer}.self_attn.{part}_proj.weight"] = ("bf16", (rows, columns))
            found[f"{layer}.self_attn.{part}_proj.bias"] = ("bf16", (rows,))
        found[f"{layer}.self_attn.sinks"] = ("bf16", (shape.num_attention_heads,))
        found[f"{layer}.input_layernorm.weight"] = ("bf16", (hidden,))
        found[f"{layer}.post_attention_layernorm.weight"] = ("bf16", (hidden,))
        found[f"{layer}.mlp.router.weight"] = ("bf16", (experts, hidden))
        found[f"{layer}.mlp.router.bias"] = ("bf16", (experts,))
        for part, rows, columns in (("gate_up", 2 * inner, hidden), ("down", hidden, inner)):
            group = (experts, rows, columns // 32)
            found[f"{layer}.mlp.experts.{part}_proj_blocks"] = ("u8", (*group, 16))
            found[f"{layer}.mlp.experts.{part}_proj_scales"] = ("u8", group)
            found[f"{layer}.mlp.experts.{part}_proj_bias"] = ("bf16", (experts, rows))
    return found


@pytest.mark.parametrize("name", MODELS)
def test_tensors_have_the_published_names(catalogue: Catalogue, name: str) -> None:
    """The index is JSON of names and shards: with other names it would have another length."""
    model, files = files_of(catalogue, name)
    shard = next(each for each in files if each.endswith(".safetensors"))
    tensors = tensors_of(model)
    size = sum(_BYTES[kind] * prod(shape) for kind, shape in tensors.values())
    index = {"metadata": {"total_size": size}, "weight_map": dict.fromkeys(tensors, shard)}
    written = json.dumps(index)
    assert len(written) == files["model.safetensors.index.json"].size_bytes


@pytest.mark.parametrize("name", MODELS)
def test_tensors_have_the_published_shapes(catalogue: Catalogue, name: str) -> None:
    """What the shards hold beside the tensors are their headers: a name, a type, a shape and two
    offsets for each tensor."""
    model, files = files_of(catalogue, name)
    tensors = tensors_of(model)
    held = sum(file.size_bytes for key, file in files.items() if key.endswith(".safetensors"))
    headers = held - sum(_BYTES[kind] * prod(shape) for kind, shape in tensors.values())
    assert 100 * len(tensors) < headers < 200 * len(tensors)
