"""The paged KV cache, and grouped-query attention over it with one attention sink per head.

A sink is a learned logit that takes part in the softmax and adds no value. With
lse = log Σ exp(score), the attention without it times sigmoid(lse - sink) is the same.
"""

from __future__ import annotations

from math import prod

import numpy as np
import torch
from torch import Tensor

from engines.native.backends.cpu.layout import AttentionGroup
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


class Attention:
    """Attention of one layer; what differs from step to step comes in AttentionGroups."""

    def __init__(self, sinks: Tensor, num_kv_heads: int, head_dim: int) -> None:
        """`sinks` (heads): query heads that share a K/V head are neighbours."""
        self._sinks = sinks.float().view(num_kv_heads, -1)  # (kv_heads, queries_per_kv)
        self._head_dim = head_dim
        self._scale = head_dim**-0.5
        self._attend = attend if sinks.device.type == "cpu" else attend_reference

    def __call__(self, q: Tensor, cache: Tensor, groups: tuple[AttentionGroup, ...]) -> Tensor:
        """q (tokens, heads, head_dim), cache (blocks, values per block) -> (tokens, heads * d)."""
        outs, lses = zip(
            *(self._group(q[group.rows], cache, group) for group in groups), strict=True
        )
        out, lse = (torch.cat(parts) if len(parts) > 1 else parts[0] for parts in (outs, lses))
        out = out * torch.sigmoid(lse - self._sinks).unsqueeze(-1).to(out.dtype)
        return out.flatten(1)

    def _group(self, q: Tensor, cache: Tensor, group: AttentionGroup) -> tuple[Tensor, Tensor]:
        """Attention without sinks: (tokens, kv_heads, queries_per_kv, d), and its log-sum-exp."""
        num_kv_heads, queries_per_kv = self._sinks.shape
        kv = cache.index_select(0, group.blocks)
        kv = kv.view(group.num_sequences, -1, 2, num_kv_heads, self._head_dim)
        k, v = kv.permute(2, 0, 3, 1, 4)  # each (sequences, kv_heads, keys, head_dim)
        q = q.view(-1, num_kv_heads, queries_per_kv, self._head_dim)
        if not group.is_chunk:  # heads that share a K/V head stand in for query positions
            return self._attend(q, k, v, group.mask, self._scale)
        # Or, as a chunk needs those, for sequences that all read the same keys: nothing is copied.
        k, v = k.expand(queries_per_kv, -1, -1, -1), v.expand(queries_per_kv, -1, -1, -1)
        out, lse = self._attend(q.permute(2, 1, 0, 3), k, v, group.mask, self._scale)
        return out.permute(2, 1, 0, 3), lse.permute(2, 1, 0)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Attention and its log-sum-exp, q (b, h, n, d), k and v (b, h, keys, d), by torch's kernel.

    It is the CPU kernel behind scaled_dot_product_attention, which hides the log-sum-exp.
    """
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default(
        q, k, v, attn_mask=mask, scale=scale
    )
    return out, lse


def attend_reference(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """The same as `attend`, spelt out."""
    scores = (q @ k.transpose(-2, -1)).float() * scale + mask
    return torch.softmax(scores, dim=-1).to(v.dtype) @ v, torch.logsumexp(scores, dim=-1)
