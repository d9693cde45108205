"""How many KV blocks there are, what they hold, and how long a sequence they allow."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import torch

from engines.errors import EngineStartError
from engines.native.config import DType, ModelConfig, NativeConfig

_ELEMENT_BYTES: Final[dict[DType, int]] = {"float32": 4, "bfloat16": 2}
# K/V in 8 bits are e4m3 numbers, kept as bytes so that copies and index operations know the type.
FP8: Final = torch.uint8


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """What a device has left for KV once the weights are loaded.

    Where the configuration leaves the size open, the pool takes `usual_bytes`, and up to
    `automatic_bytes` if one sequence of the greatest length needs them.
    """

    free_bytes: int
    automatic_bytes: int
    usual_bytes: int


@dataclass(frozen=True, slots=True)
class LeastPool:
    """The smallest pool with which an engine starts: it holds one sequence of that many tokens."""

    num_blocks: int
    num_tokens: int


def cache_dtype(config: NativeConfig) -> torch.dtype:
    """What the blocks hold."""
    if config.kv_dtype == "fp8":
        return FP8
    dtype: torch.dtype = getattr(torch, config.dtype)
    return dtype


def layers_per_group(model: ModelConfig) -> int:
    """Layers in a row of the KV pool: the larger of the full-attention and the sliding group."""
    num_full = model.layer_types.count("full_attention")
    return max(num_full, model.num_hidden_layers - num_full)


def block_bytes(model: ModelConfig, config: NativeConfig) -> int:
    """Bytes of one block, all layers of its group together."""
    values = layers_per_group(model) * config.block_size * 2 * model.kv_size
    return values * (1 if config.kv_dtype == "fp8" else _ELEMENT_BYTES[config.dtype])


def num_blocks_for(model: ModelConfig, config: NativeConfig, num_tokens: int) -> int:
    """Blocks that hold one sequence of num_tokens tokens, computed in chunks."""
    num_full = -(-num_tokens // config.block_size)
    num_visible = model.sliding_window + config.max_num_batched_tokens
    return num_full + min(num_full, -(-num_visible // config.block_size) + 1)


def least_pool(model: ModelConfig, config: NativeConfig) -> LeastPool:
    """A sequence of max_model_len, or of one window and block where that is left to the engine."""
    longest = config.max_model_len or model.max_position_embeddings
    least = config.max_model_len or min(longest, model.sliding_window + config.block_size)
    return LeastPool(num_blocks_for(model, config, least) + 1, least)


def choose_num_blocks(model: ModelConfig, config: NativeConfig, budget: MemoryBudget) -> int:
    """Size the pool: the budget, or what max_num_seqs sequences of the greatest length can use.

    Raises EngineStartError where the least pool is larger.
    """
    each = block_bytes(model, config)
    least, num_blocks = least_pool(model, config), config.num_kv_blocks
    if num_blocks is None:
        longest = config.max_model_len or model.max_position_embeddings
        one = num_blocks_for(model, config, longest)
        wanted = max(min(config.max_num_seqs * one, budget.usual_bytes // each), one) + 1
        num_blocks = min(wanted, budget.automatic_bytes // each)
        _check_automatic(least, num_blocks, each, budget)
    elif num_blocks < least.num_blocks:
        raise EngineStartError(
            f"num_kv_blocks is {num_blocks}, and a sequence of {least.num_tokens} tokens needs"
            f" {least.num_blocks}; raise num_kv_blocks or lower max_model_len"
        )
    else:
        _check_memory(num_blocks * each, budget.free_bytes)
    return num_blocks


def num_host_blocks(parts: Iterable[ModelConfig], config: NativeConfig) -> int:
    """Blocks that the host memory of the configuration has room for, of all parts of a model."""
    return config.host_kv_bytes // sum(block_bytes(part, config) for part in parts)


def longest_sequence(model: ModelConfig, config: NativeConfig, num_blocks: int) -> int:
    """The model length that a pool of num_blocks allows."""
    if config.max_model_len is not None:
        return config.max_model_len
    num_window = num_blocks_for(model, config, model.max_position_embeddings)
    num_window -= -(-model.max_position_embeddings // config.block_size)
    num_tokens = (num_blocks - 1 - num_window) * config.block_size
    if num_tokens < model.sliding_window + config.max_num_batched_tokens:
        num_tokens = (num_blocks - 1) // 2 * config.block_size  # all of it is in the window
    return min(model.max_position_embeddings, num_tokens)


def _check_automatic(least: LeastPool, num_blocks: int, each: int, budget: MemoryBudget) -> None:
    if num_blocks < least.num_blocks:
        raise EngineStartError(
            f"The KV cache of one sequence of {least.num_tokens} tokens needs"
            f" {least.num_blocks * each} bytes. {budget.free_bytes} bytes are free beside the"
            f" weights, and memory_fraction leaves {budget.automatic_bytes} of them to the cache;"
            " lower max_model_len, raise memory_fraction (NIM_KVCACHE_PERCENT) or free memory"
        )


def _check_memory(needed: int, available: int) -> None:
    if needed > available:
        raise EngineStartError(
            f"the KV cache needs {needed} bytes and {available} bytes of memory are free;"
            " lower num_kv_blocks"
        )
