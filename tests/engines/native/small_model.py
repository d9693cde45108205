"""A small gpt-oss of random weights, in the published format."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file

from engines.native.config import ModelConfig
from engines.native.weights import tensor_specs

ROPE: Final = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 64,
}
THETA: Final = 150_000.0


def small_config(vocab_size: int) -> dict[str, Any]:
    """Its config.json."""
    return {
        "model_type": "gpt_oss",
        "vocab_size": vocab_size,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 4,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "sliding_window": 8,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_theta": THETA,
        "rope_scaling": ROPE,
    }


def write_small(
    folder: Path,
    config: dict[str, Any],
    change: Callable[[dict[str, torch.Tensor]], None] = lambda _: None,
) -> Path:
    """Write it, the same each time, its tensors changed."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(0)
    specs = tensor_specs(ModelConfig.from_dir(folder))
    tensors = {
        name: torch.randn(spec.shape, generator=generator) * (1.0 if "norm" in name else 0.3)
        for name, spec in specs.items()
    }
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    return folder
