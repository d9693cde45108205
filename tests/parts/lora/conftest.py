"""Adapters of a small model, and a service that serves them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.e2e.conftest import start_server
from tests.service.conftest import chat_body, harmony_ids, make_client, make_runtime

__all__ = ["chat_body", "harmony_ids", "make_client", "make_runtime", "start_server"]

SMALL = {"k_proj": (16, 32), "v_proj": (16, 32)}
Q_PROJ = "base_model.model.model.layers.0.self_attn.q_proj"


def write_plain(folder: Path, module: str = Q_PROJ, rank: int = 4, **changes: Any) -> Path:
    """An adapter of one module, all of whose numbers are 0."""
    folder.mkdir(parents=True, exist_ok=True)
    zeros = {"lora_A": (rank, 32), "lora_B": (32, rank)}
    tensors = {
        f"{module}.{name}.weight": np.zeros(shape, np.float32) for name, shape in zeros.items()
    }
    save_file(tensors, folder / "adapter_model.safetensors")
    described = {"peft_type": "LORA", "r": rank, "lora_alpha": 8, "bias": "none"} | changes
    (folder / "adapter_config.json").write_text(json.dumps(described))
    return folder


def write_adapted(
    folder: Path,
    modules: Iterable[tuple[int, str]],
    rank: int,
    seed: int,
    by: float = 0.3,
    sides: Mapping[str, tuple[int, int]] = SMALL,
    **changes: Any,
) -> Path:
    """An adapter of random numbers; `modules`: layers and what they have, `sides`: outputs and
    inputs of each, by default the small model's."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers = np.random.default_rng(seed)
    tensors = {}
    for layer, module in modules:
        place = module if "." in module else f"self_attn.{module}"
        num_out, num_in = sides.get(module, (32, 32))
        for name, shape in {"lora_A": (rank, num_in), "lora_B": (num_out, rank)}.items():
            stored = f"base_model.model.model.layers.{layer}.{place}.{name}.weight"
            tensors[stored] = (numbers.standard_normal(shape) * by).astype(np.float32)
    save_file(tensors, folder / "adapter_model.safetensors")
    described = {"peft_type": "LORA", "r": rank, "lora_alpha": 16, "bias": "none"} | changes
    (folder / "adapter_config.json").write_text(json.dumps(described))
    return folder


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with the adapters `french` and `law`."""
    for name in ("french", "law"):
        write_plain(tmp_path / "adapters" / name)
    return tmp_path / "adapters"
