"""The paged KV cache, and grouped-query attention over it with one attention sink per head.

A sink is a learned logit that takes part in the softmax and adds no value. With
lse = log Σ exp(score), the attention without it times sigmoid(lse - sink) is the same.

Tokens of a step's spans lie one after the other: spans of several tokens first, then the
sequences that compute one token. A run of tokens whose attention is computed in one call
is an AttentionGroup: one span, or sequences of one token and of similar length.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engines.native.config import ModelConfig, NativeConfig
from engines.native.host.slots import Span
from engines.native.kv_pool import FP8, cache_dtype, layers_per_group

_MASKED = -1e30  # finite: a whole tile of -inf would make NaN in an online softmax
_MIN_SPLIT_TOKENS = 512  # sequences up to this length are never worth a call of their own
_LARGEST = torch.finfo(torch.float8_e4m3fn).max
_PIECE = 64  # queries of a chunk in one call: fewer share a read, more see what is masked

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class QueryPiece:
    """Queries of a group, and all keys that any of them may see."""

    queries: slice
    keys: slice
    # Added to scores: (queries, keys) of a chunk, else (sequences, 1, 1, keys). None: query i sees
    # the keys up to i.
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Consecutive rows of the batch and the K/V blocks they attend to."""

    rows: slice
    num_sequences: int
    is_chunk: bool  # several queries of one sequence; else one query of each sequence
    blocks: Tensor  # (sequences * blocks per sequence)
    pieces: tuple[QueryPiece, ...]  # of a chunk; sequences of one query each are one piece


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """Where one kind of layer writes and reads its K/V in this step."""

    slots: Tensor  # (tokens): block * block_size + offset
    groups: tuple[AttentionGroup, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """Everything a forward pass needs beside the weights and the cache."""

    input_ids: Tensor  # (tokens)
    positions: Tensor  # (tokens)
    full: CacheLayout
    sliding: CacheLayout
    sampled_rows: Tensor  # rows whose logits are wanted, in the order of the step
    ends: tuple[int, ...]  # the row after each span's last, in the order of the step
    adapted: tuple[tuple[str, Tensor], ...]  # adapters by their keys, each with its rows

    @property
    def num_gathered_blocks(self) -> int:
        """Blocks of K/V that a layer of the kind with more of them reads."""
        kinds = (self.full, self.sliding)
        return max(sum(len(group.blocks) for group in kind.groups) for kind in kinds)


class LayoutBuilder:
    """Lays out steps for one model and device."""

    def __init__(
        self,
        block_size: int,
        sliding_window: int,
        dtype: torch.dtype,
        device: torch.device,
        max_group_tokens: int | None = None,
    ) -> None:
        """`max_group_tokens`: limit of positions that the decodes of one group attend to."""
        self._block_size, self._window = block_size, sliding_window
        self._dtype, self._device = dtype, device
        self._max_group_tokens = max_group_tokens

    def build(self, spans: Sequence[Span]) -> Layout:
        """Lay out the spans of one step; their slots have every block they write to."""
        runs = split_runs(spans, self._max_group_tokens)
        order = [index for run in runs for index in run]
        ends = accumulate(spans[index].num_tokens for index in order)
        ends_of = dict(zip(order, ends, strict=True))
        sampled = [
            row
            for index, span in enumerate(spans)
            for row in range(ends_of[index] - span.num_sampled, ends_of[index])
        ]
        spans = [spans[index] for index in order]
        return Layout(
            input_ids=self._ints([t for span in spans for t in span.token_ids]),
            positions=self._ints([position for span in spans for position in span.positions]),
            full=self._layout(runs, spans, is_sliding=False),
            sliding=self._layout(runs, spans, is_sliding=True),
            sampled_rows=self._ints(sampled),
            ends=tuple(ends_of[index] for index in range(len(order))),
            adapted=self._adapted(spans),
        )

    def _adapted(self, spans: list[Span]) -> tuple[tuple[str, Tensor], ...]:
        rows: dict[str, list[int]] = {}
        first = 0
        for span in spans:
            end = first + span.num_tokens
            if span.slot.adapter is not None:
                rows.setdefault(span.slot.adapter, []).extend(range(first, end))
            first = end
        return tuple((key, self._ints(of)) for key, of in rows.items())

    def _layout(self, runs: list[list[int]], spans: list[Span], is_sliding: bool) -> CacheLayout:
        size = self._block_size
        tables = [span.blocks(is_sliding) for span in spans]
        slots = [
            table[position // size] * size + position % size
            for span, table in zip(spans, tables, strict=True)
            for position in span.positions
        ]
        window = self._window if is_sliding else None
        groups, first, row = [], 0, 0
        for run in runs:
            last = first + len(run)
            num_rows = sum(span.num_tokens for span in spans[first:last])
            rows = slice(row, row + num_rows)
            groups.append(self._group(rows, spans[first:last], tables[first:last], window))
            first, row = last, row + num_rows
        return CacheLayout(self._ints(slots), tuple(groups))

    def _group(
        self, rows: slice, spans: list[Span], tables: list[list[int]], window: int | None
    ) -> AttentionGroup:
        """Pad the block tables with NULL_BLOCK to one length, and mask what is not to be seen."""
        size = self._block_size
        firsts = [span.first_visible(window) // size for span in spans]
        lines = [
            table[first : -(-span.end // size)]
            for span, table, first in zip(spans, tables, firsts, strict=True)
        ]
        num_blocks = max(map(len, lines))
        blocks = [block for line in lines for block in line + [0] * (num_blocks - len(line))]
        is_chunk = spans[0].num_tokens > 1
        if is_chunk:
            pieces = tuple(self._pieces(spans[0], firsts[0] * size, window))
        else:
            keys = np.array(firsts)[:, None] * size + np.arange(num_blocks * size)
            queries = np.array([span.start for span in spans])[:, None]
            mask = self._mask(keys, queries, window)[:, None, None]
            pieces = (QueryPiece(slice(None), slice(None), mask),)
        return AttentionGroup(rows, len(spans), is_chunk, self._ints(blocks), pieces)

    def _pieces(self, chunk: Span, first_key: int, window: int | None) -> Iterable[QueryPiece]:
        """The chunk's queries, few at a time: what no query of a piece may see is not read.

        A window is narrower than a chunk, and half of a chunk lies behind a query of it. Keys are
        counted from first_key on. All at once where the kernel knows without a mask what is hidden.
        """
        if chunk.start == 0 and (window is None or chunk.end <= window):
            yield QueryPiece(slice(0, chunk.end), slice(0, chunk.end), None)
            return
        for start in range(chunk.start, chunk.end, _PIECE):
            piece = chunk._replace(start=start, end=min(start + _PIECE, chunk.end))
            keys, queries = range(piece.first_visible(window), piece.end), piece.positions
            mask = self._mask(np.array(keys), np.array(queries)[:, None], window)
            yield QueryPiece(_behind(queries, chunk.start), _behind(keys, first_key), mask)

    def _mask(self, keys: Ints, queries: Ints, window: int | None) -> Tensor:
        is_hidden = keys > queries
        if window is not None:
            is_hidden |= keys <= queries - window
        mask = np.where(is_hidden, np.float32(_MASKED), np.float32(0))
        return torch.from_numpy(mask).to(self._device, self._dtype)

    def _ints(self, values: list[int]) -> Tensor:
        return torch.from_numpy(np.array(values, dtype=np.int64)).to(self._device)


def _behind(positions: range, origin: int) -> slice:
    return slice(positions.start - origin, positions.stop - origin)


def split_runs(spans: Sequence[Span], max_tokens: int | None = None) -> list[list[int]]:
    """Indices of the spans attended to together; those of one token go by similar length.

    A run pads its sequences to the longest, so a much shorter one starts the next run. None of
    several sequences has more than `max_tokens`.
    """
    runs = [[index] for index, span in enumerate(spans) if span.num_tokens > 1]
    lengths = {index: span.end for index, span in enumerate(spans) if span.num_tokens == 1}
    alike: list[list[int]] = []
    for index in sorted(lengths, key=lambda i: (-lengths[i], i)):
        if not alike or lengths[alike[-1][0]] > max(4 * lengths[index], _MIN_SPLIT_TOKENS):
            alike.append([])
        alike[-1].append(index)
    for run in alike:
        size = len(run)
        if max_tokens is not None:
            num_parts = -(-size // max(1, max_tokens // lengths[run[0]]))
            size = -(-size // num_parts)
        runs += [run[first : first + size] for first in range(0, len(run), size)]
    return runs


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


def stored(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Values as a cache of this type holds them; e4m3 has three bits of mantissa, at most 448."""
    if dtype != FP8:
        return values.to(dtype)
    return values.clamp(-_LARGEST, _LARGEST).to(torch.float8_e4m3fn).view(FP8)


def read(cached: Tensor, dtype: torch.dtype) -> Tensor:
    """What a cache holds, in the type that is computed."""
    if cached.dtype == FP8:
        cached = cached.view(torch.float8_e4m3fn)
    return cached.to(dtype)


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
        self, q: Tensor, k: Tensor, v: Tensor, pieces: tuple[QueryPiece, ...]
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
