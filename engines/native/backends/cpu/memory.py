"""How much memory a loaded model takes on the CPU."""

from __future__ import annotations

import sys
from math import prod
from typing import Final

import torch

from engines.errors import EngineStartError
from engines.native.backends.cpu import layers
from engines.native.config import ModelConfig, NativeConfig
from engines.native.host.memory import available_bytes
from engines.native.kv_pool import MemoryBudget
from engines.native.weights import tensor_specs

_MAX_SHARE: Final = 0.25  # of the free memory, for a KV pool of automatic size
_USUAL_BYTES: Final = 1 << 30  # of such a pool, unless one sequence needs more


def check_memory(config: NativeConfig, model: ModelConfig, dtype: torch.dtype) -> None:
    """Refuse a model that cannot fit rather than be killed while loading it."""
    needed = held_bytes(model, dtype) + _in_the_making(model, dtype)
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
    layer = sum(layers.linear_bytes(*shape, dtype) for shape in attention)
    layer += layers.expert_bytes(model, dtype)
    head = layers.linear_bytes(vocabulary, hidden, dtype)
    others = _num_others(model) * dtype.itemsize
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


def check_host_kv(config: NativeConfig) -> None:
    """Refuse host K/V blocks that do not fit into the machine's memory."""
    available = available_bytes()
    if available is not None and config.host_kv_bytes > available:
        raise EngineStartError(
            f"host_kv_bytes is {config.host_kv_bytes}, and {available} bytes of memory are free;"
            " lower NIM_KV_CACHE_HOST_MEM_FRACTION"
        )


def kv_budget(memory_fraction: float, host_kv_bytes: int = 0) -> MemoryBudget:
    """An automatic pool is small, because other programs use the machine too.

    host_kv_bytes: taken beside the pool.
    """
    available = available_bytes()
    if available is None:
        return MemoryBudget(sys.maxsize, sys.maxsize, _USUAL_BYTES)
    available = max(available - host_kv_bytes, 0)
    automatic = int(available * min(memory_fraction, _MAX_SHARE))
    return MemoryBudget(available, automatic, min(automatic, _USUAL_BYTES))
