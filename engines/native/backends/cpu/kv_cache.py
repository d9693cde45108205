"""The paged K/V tensors."""

from __future__ import annotations

from math import prod

import numpy as np
import torch
from torch import Tensor

from engines.native.config import ModelConfig, NativeConfig
from engines.native.kv_pool import layers_per_group


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
