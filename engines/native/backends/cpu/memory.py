"""How much memory a loaded model takes on the CPU, and how much there is."""

from __future__ import annotations

import sys
from math import prod
from pathlib import Path
from typing import Final

import torch

from engines.errors import EngineStartError
from engines.native.backends.cpu import experts, linear, screen
from engines.native.backends.cpu.linear import computed_dtype
from engines.native.config import ModelConfig, NativeConfig
from engines.native.eagle.checkpoint import copied_values
from engines.native.kv_pool import MemoryBudget
from engines.native.weights import tensor_specs

_MAX_SHARE: Final = 0.25  # of the free memory, for a KV pool of automatic size
_USUAL_BYTES: Final = 1 << 30  # of such a pool, unless one sequence needs more
_MEMINFO: Final = Path("/proc/meminfo")
_CGROUP: Final = Path("/sys/fs/cgroup")


def check_memory(config: NativeConfig, model: ModelConfig, dtype: torch.dtype) -> None:
    """Refuse a model that cannot fit rather than be killed while loading it."""
    needed = held_bytes(model, dtype) + _in_the_making(model, dtype)
    if config.draft_dir is not None:
        needed += copied_values(config.draft_dir, model) * computed_dtype(dtype).itemsize
    available = available_bytes()
    if available is not None and needed > available:
        raise EngineStartError(
            f"{config.model_dir}: the weights need {needed} bytes as {config.dtype}, and"
            f" {available} bytes of memory are free; use a smaller model or dtype bfloat16"
        )


def held_bytes(model: ModelConfig, dtype: torch.dtype) -> int:
    """What the loaded weights take: matrices in all their copies, all else as it is computed.

    MXFP4 experts are unpacked to `dtype`. The embedding stays in its file.
    """
    hidden, vocabulary = model.hidden_size, model.vocab_size
    attention = ((model.q_size + 2 * model.kv_size, hidden), (hidden, model.q_size))
    layer = sum(linear.held_bytes(*shape, dtype) for shape in attention)
    layer += experts.held_bytes(model, dtype)
    head = linear.held_bytes(vocabulary, hidden, dtype, is_read_always=True)
    head += screen.held_bytes(vocabulary, hidden, dtype)
    others = _num_others(model) * computed_dtype(dtype).itemsize
    return model.num_hidden_layers * layer + head + others


def _num_others(model: ModelConfig) -> int:
    """Values of the tensors that are no matrices: gains, biases, sinks; and the routers'."""
    matrices = ("_proj", "_proj.weight", "embed_tokens.weight", "lm_head.weight")
    specs = tensor_specs(model).items()
    return sum(prod(spec.shape) for name, spec in specs if not name.endswith(matrices))


def _in_the_making(model: ModelConfig, dtype: torch.dtype) -> int:
    """What a layer's experts take while they are made: as read, and their first matrix in order."""
    values = model.num_local_experts * model.hidden_size * model.intermediate_size
    return (2 * 2 + 1) * values * dtype.itemsize


def kv_budget(memory_fraction: float) -> MemoryBudget:
    """The machine is not ours alone: an automatic pool is modest."""
    available = available_bytes()
    if available is None:
        return MemoryBudget(sys.maxsize, sys.maxsize, _USUAL_BYTES)
    automatic = int(available * min(memory_fraction, _MAX_SHARE))
    return MemoryBudget(available, automatic, min(automatic, _USUAL_BYTES))


def available_bytes() -> int | None:
    """Free memory in bytes, within the machine's and the container's limits; None where unknown."""
    limits = [limit for limit in (_machine_bytes(), _container_bytes()) if limit is not None]
    return min(limits, default=None)


def _machine_bytes() -> int | None:
    try:
        lines = _MEMINFO.read_text().splitlines()
    except OSError:
        return None
    kib = next((line.split()[1] for line in lines if line.startswith("MemAvailable:")), None)
    return None if kib is None else int(kib) * 1024


def _container_bytes() -> int | None:
    """What a cgroup v2 limit leaves, file pages that can be dropped not counted as used."""
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = int((_CGROUP / "memory.current").read_text())
        stat = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    if limit == "max":
        return None
    return max(int(limit) - used + int(stat.get("inactive_file", 0)), 0)
