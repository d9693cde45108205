"""The paged K/V tensors and how many blocks of them fit."""

from __future__ import annotations

from math import prod

import numpy as np
import torch
from torch import Tensor

from engines.errors import EngineStartError
from engines.native.config import ModelConfig, NativeConfig
from engines.native.memory import available_bytes

_MAX_SHARE = 0.25  # of the free memory, for a pool of automatic size
_USUAL_TOKENS = 4096  # length of a sequence that the automatic size has in mind


class KVCache:
    """One tensor for all layers: block b of group layer i is self.blocks[i][b].

    Full-attention and sliding layers share the blocks: a block holds K/V of either, so a
    pool row has as many layers as the larger of the two groups. Block 0 stays zero.
    """

    def __init__(
        self, model: ModelConfig, config: NativeConfig, num_blocks: int, device: torch.device
    ) -> None:
        values = config.block_size * 2 * model.kv_size
        shape = (layers_per_group(model), num_blocks, values)
        self.blocks = _zeros(shape, getattr(torch, config.dtype), device)
        self.slots = self.blocks.view(len(self.blocks), -1, 2 * model.kv_size)

    def write(self, layer: int, slots: Tensor, kv: Tensor) -> None:
        """Store kv (tokens, 2 * kv_size) at slots (tokens) of a group layer."""
        self.slots[layer].index_copy_(0, slots, kv)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros; on CPU memory is only taken once a block is written, which torch.zeros would do."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    pages = np.zeros(prod(shape) * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(pages).view(dtype).view(shape)


def layers_per_group(model: ModelConfig) -> int:
    num_full = model.layer_types.count("full_attention")
    return max(num_full, model.num_hidden_layers - num_full)


def block_bytes(model: ModelConfig, config: NativeConfig) -> int:
    """Bytes of one block, all layers of its group together."""
    element = getattr(torch, config.dtype).itemsize
    return int(layers_per_group(model) * config.block_size * 2 * model.kv_size * element)


def num_blocks_for(model: ModelConfig, config: NativeConfig, num_tokens: int) -> int:
    """Blocks that hold one sequence of num_tokens, computed in chunks."""
    num_full = -(-num_tokens // config.block_size)
    num_visible = model.sliding_window + config.max_num_batched_tokens
    return num_full + min(num_full, -(-num_visible // config.block_size) + 1)


def choose_num_blocks(model: ModelConfig, config: NativeConfig) -> int:
    """Size the pool: room for max_num_seqs usual sequences, within a share of free memory.

    EngineStartError when not even one sequence of max_model_len fits, or of one window and
    chunk where max_model_len is left to the engine.
    """
    longest = config.max_model_len or model.max_position_embeddings
    num_blocks = config.num_kv_blocks
    if num_blocks is None:
        usual = num_blocks_for(model, config, min(longest, _USUAL_TOKENS))
        num_blocks = max(config.max_num_seqs * usual, num_blocks_for(model, config, longest)) + 1
        num_blocks = min(num_blocks, _affordable_blocks(model, config, num_blocks))
    _check_memory(num_blocks * block_bytes(model, config))
    least = config.max_model_len or min(longest, model.sliding_window + config.block_size)
    needed = num_blocks_for(model, config, least) + 1
    if num_blocks < needed:
        raise EngineStartError(
            f"num_kv_blocks is {num_blocks}, and a sequence of {least} tokens needs {needed}"
            f" blocks of {block_bytes(model, config)} bytes;"
            " raise num_kv_blocks, lower max_model_len or give the engine more memory"
        )
    return num_blocks


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


def _check_memory(needed: int) -> None:
    available = available_bytes()
    if available is not None and needed > available:
        raise EngineStartError(
            f"the KV cache needs {needed} bytes and {available} bytes of memory are free;"
            " lower num_kv_blocks"
        )


def _affordable_blocks(model: ModelConfig, config: NativeConfig, wanted: int) -> int:
    available = available_bytes()
    if available is None:
        return wanted
    return int(available * _MAX_SHARE) // block_bytes(model, config)
