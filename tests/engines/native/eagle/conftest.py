"""A tiny target whose layers can be looked at, and heads for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engines.native.config import ModelConfig
from engines.native.weights import tensor_specs
from tests.engines.native.eagle.reference import Tensors, head_config, head_tensors, write_head

TARGET: dict[str, Any] = {
    "model_type": "gpt_oss",
    "vocab_size": 60,
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
    "rope_theta": 150000.0,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 64,
    },
}


@pytest.fixture(scope="package", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@dataclass
class Folders:
    """A target's checkpoint, and places for heads."""

    model: Path
    heads: Path

    @property
    def embedding(self) -> torch.Tensor:
        return load_file(self.model / "model.safetensors")["model.embed_tokens.weight"]

    def head(self, name: str = "head", seed: int = 5, **changes: Any) -> Path:
        """A random head's folder."""
        config = head_config(TARGET, **changes)
        return write_head(self.heads / name, config, head_tensors(config, seed))


def write_target(folder: Path, change: Callable[[Tensors], None] = lambda _: None) -> Path:
    """A random target, its tensors changed."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(TARGET))
    generator = torch.Generator().manual_seed(0)
    specs = tensor_specs(ModelConfig.from_dir(folder))
    tensors = {
        name: torch.randn(spec.shape, generator=generator) * (1.0 if "norm" in name else 0.3)
        for name, spec in specs.items()
    }
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="package")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    root = tmp_path_factory.mktemp("eagle")
    return Folders(write_target(root / "model"), root)
