"""The packed weights as a training state again: what tools/nano/pack.py wrote, read back."""

from __future__ import annotations

import json
import lzma
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from profiles.checkpoints.compact import CONFIGS, MANIFEST, WEIGHTS, from_bf16, unpack_safetensors
from tools.nano.layers import Layer, Shape
from tools.nano.model import Nano
from tools.nano.rows import make_makeup


def load_packed(source: Path) -> tuple[Nano, dict[str, Any]]:
    """Return the model of a packed folder, and its manifest.

    Raises ValueError where the recipe would make other rows of the vocabulary than were packed.
    """
    manifest: dict[str, Any] = json.loads((source / MANIFEST).read_text())
    config = json.loads((source / CONFIGS[0]).read_text())
    tensors = unpack_safetensors(lzma.decompress((source / WEIGHTS).read_bytes()))
    arrays = {name: tensor.array for name, tensor in tensors.items()}
    makeup = make_makeup(manifest["drawn_seed"], arrays["learnt"].tolist())
    for name in ("word", "form", "spelling", "written"):
        if not np.array_equal(getattr(makeup, name), arrays[name]):
            raise ValueError(f"{source}: packed with another {name} than the recipe makes now")
    shape = Shape(**{name: config[name] for name in _SIZES if name in config})
    model = Nano(shape, makeup)
    learnt = {
        name: torch.from_numpy(from_bf16(tensor.array.copy()))
        for name, tensor in tensors.items()
        if tensor.dtype == "BF16"
    }
    with torch.no_grad():
        _fill(model, learnt)
    return model, manifest


_SIZES = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "intermediate_size", "num_local_experts", "num_experts_per_tok", "sliding_window",
)  # fmt: skip


def _fill(model: Nano, tensors: Mapping[str, Tensor]) -> None:
    model.forms.copy_(tensors["forms"])
    model.learnt_embedding.copy_(tensors["learnt.embedding"])
    model.learnt_head.copy_(tensors["learnt.head"])
    model.unmet_head.copy_(tensors["unmet.head"])
    model.norm.weight.copy_(tensors["model.norm.weight"])
    for index, layer in enumerate(model.stack()):
        start = f"model.layers.{index}."
        own = {name.removeprefix(start): t for name, t in tensors.items() if name.startswith(start)}
        _fill_layer(layer, own)


def _fill_layer(layer: Layer, tensors: Mapping[str, Tensor]) -> None:
    attention, experts = layer.attention, layer.experts
    width = experts.shape.intermediate_size
    layer.attention_norm.weight.copy_(tensors["input_layernorm.weight"])
    layer.experts_norm.weight.copy_(tensors["post_attention_layernorm.weight"])
    attention.sinks.copy_(tensors["self_attn.sinks"])
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        linear = getattr(attention, name)
        linear.weight.copy_(tensors[f"self_attn.{name}.weight"])
        linear.bias.copy_(tensors[f"self_attn.{name}.bias"])
    experts.router.weight.copy_(tensors["mlp.router.weight"])
    experts.router.bias.copy_(tensors["mlp.router.bias"])
    both = tensors["mlp.experts.gate_up_proj"].transpose(1, 2).unflatten(1, (width, 2))
    both_bias = tensors["mlp.experts.gate_up_proj_bias"].unflatten(1, (width, 2))
    for place, part in enumerate((experts.gate, experts.up)):
        part.weight.copy_(both[:, :, place].flatten(0, 1))
        part.bias.copy_(both_bias[:, :, place].flatten())
    experts.down.weight.copy_(tensors["mlp.experts.down_proj"].flatten(0, 1).T)
    experts.down_bias.copy_(tensors["mlp.experts.down_proj_bias"])
