"""The paged KV cache, and grouped-query attention over it with one attention sink per head.

A sink is a learned logit that takes part in the softmax and adds no value. With
lse = log Σ exp(score), the attention without it times sigmoid(lse - sink) is the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np
import torch
from torch import Tensor

from engines.native.backends.cpu.layout import AttentionGroup, Piece
from engines.native.backends.fp8 import cache_dtype, read, stored
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
        self.blocks = zeros(shape, cache_dtype(config), device)
        self.slots = self.blocks.view(len(self.blocks), -1, 2 * model.kv_size)

    def write(self, layer: int, slots: Tensor, kv: Tensor) -> None:
        """Store kv (tokens, 2 * kv_size) at slots (tokens) of a group layer."""
        self.slots[layer].index_copy_(0, slots, stored(kv, self.slots.dtype))


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
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
        parts = [part for group in groups for part in self._group(q[group.rows], cache, group)]
        out, lse = (
            torch.cat(some) if len(some) > 1 else some[0] for some in zip(*parts, strict=True)
        )
        out *= torch.sigmoid(lse - self._sinks).unsqueeze(-1).to(out.dtype)
        return out.flatten(1)

    def _group(
        self, q: Tensor, cache: Tensor, group: AttentionGroup
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Attention without sinks: (tokens, kv_heads, queries_per_kv, d), and its log-sum-exp.

        In parts, one after the other.
        """
        num_kv_heads, queries_per_kv = self._sinks.shape
        kv = read(cache.index_select(0, group.blocks), q.dtype)
        kv = kv.view(group.num_sequences, -1, 2, num_kv_heads, self._head_dim)
        k, v = kv.permute(2, 0, 3, 1, 4)  # each (sequences, kv_heads, keys, head_dim)
        q = q.view(-1, num_kv_heads, queries_per_kv, self._head_dim)
        if group.is_chunk:
            yield from self._chunk(q, k, v, group.pieces)
        else:  # heads that share a K/V head take the place of query positions
            [whole] = group.pieces
            yield self._attend(q, k, v, whole.mask, self._scale)

    def _chunk(
        self, q: Tensor, k: Tensor, v: Tensor, pieces: tuple[Piece, ...]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Heads that share a K/V head are treated as sequences that all read the same keys.

        So nothing is copied.
        """
        q = q.permute(2, 1, 0, 3)
        k, v = k.expand(len(q), -1, -1, -1), v.expand(len(q), -1, -1, -1)
        for piece in pieces:
            some, seen = piece.queries, piece.keys
            out, lse = self._attend(
                q[:, :, some], k[:, :, seen], v[:, :, seen], piece.mask, self._scale
            )
            yield out.permute(2, 1, 0, 3), lse.permute(2, 1, 0)


def attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """Attention and its log-sum-exp, q (b, h, n, d), k and v (b, h, keys, d), by torch's kernel.

    Without a mask query i sees the keys up to i. It is the CPU kernel behind
    scaled_dot_product_attention, which hides the log-sum-exp.
    """
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default(
        q, k, v, is_causal=mask is None, attn_mask=mask, scale=scale
    )
    return out, lse


def attend_reference(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    if mask is None:
        mask = q.new_full((q.shape[-2], k.shape[-2]), -torch.inf).triu(1)
    scores = (q @ k.transpose(-2, -1)).float() * scale + mask
    return torch.softmax(scores, dim=-1).to(v.dtype) @ v, torch.logsumexp(scores, dim=-1)
