"""A random checkpoint of gpt-oss in the published format: MXFP4 experts, a file for each layer."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from engines.native.config import ModelConfig
from engines.native.weights import EMBEDDING, TensorSpec, tensor_specs

_INDEX = "model.safetensors.index.json"
_SCALES = (117, 123)  # exponents with a bias of 127, the end left out: bounded activations
_DEVIATIONS = {EMBEDDING: 1.0, "sinks": 1.0, "bias": 0.1}  # of the rest: 0.02


def write_published(folder: Path, model: ModelConfig, device: torch.device) -> int:
    """Write config.json, one safetensors file for each layer and the index; bytes of tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_json(model)))
    files: dict[str, dict[str, TensorSpec]] = {}
    for name, spec in tensor_specs(model).items():
        layer = name.split(".")[2] if name.startswith("model.layers.") else "rest"
        files.setdefault(f"model-{layer}.safetensors", {})[name] = spec
    generator = torch.Generator(device).manual_seed(0)
    weight_map: dict[str, str] = {}
    total = 0
    for file, specs in files.items():
        tensors: dict[str, Tensor] = {}
        for name, spec in specs.items():
            tensors |= _tensors(name, spec, generator)
        save_file(tensors, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(tensors, file)
        total += sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / _INDEX).write_text(json.dumps(index))
    return total


def config_json(model: ModelConfig) -> dict[str, Any]:
    rope = {name: value for name, value in asdict(model.rope).items() if value is not None}
    theta = rope.pop("theta")
    values = {name: value for name, value in asdict(model).items() if name != "rope"}
    return {
        **values,
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "rope_theta": theta,
        "rope_scaling": {"rope_type": "yarn", **rope},
    }


def _tensors(name: str, spec: TensorSpec, generator: torch.Generator) -> dict[str, Tensor]:
    """What the published files hold under this name, on the host."""
    if not spec.is_packable:
        return {name: _normal(name, spec.shape, generator)}
    experts, num_in, num_out = spec.shape
    groups = (experts, num_out, num_in // 32)
    return {
        f"{name}_blocks": _bytes((*groups, 16), (0, 256), generator),
        f"{name}_scales": _bytes(groups, _SCALES, generator),
    }


def _normal(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    deviation = next((d for end, d in _DEVIATIONS.items() if name.endswith(end)), 0.02)
    mean = 1.0 if "norm" in name else 0.0
    values = torch.empty(shape, dtype=torch.bfloat16, device=generator.device)
    return values.normal_(mean, deviation, generator=generator).cpu()


def _bytes(shape: tuple[int, ...], bounds: tuple[int, int], generator: torch.Generator) -> Tensor:
    values = torch.empty(shape, dtype=torch.uint8, device=generator.device)
    return values.random_(*bounds, generator=generator).cpu()
