"""What an EAGLE3 head does with the rows of a step beside two dense products: eagle/head.py.

Rows of a sequence stand side by side, and a slot has no others. `num_rows` (1) int32: rows from
there on are padding. H: hidden of the head; all rows are computed in float32.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from engines.native.backends.cuda.kernels.attention import rotated


@triton.jit
def head_inputs_kernel(
    slots,
    tokens,
    last_tokens,
    num_rows,
    fused,
    kept,
    embedding,
    embedding_gain,
    hidden_gain,
    x,
    H: tl.constexpr,
    BLOCK: tl.constexpr,
    EPS: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Grid (rows): x[row] = [norm(embedding of its token) ; norm(g of the position before)].

    A token below 0 in `tokens` (rows) is its slot's in `last_tokens`. The g before a sequence's
    first row is its slot's in `kept`; before another it is the row's above in `fused` (rows, H).
    """
    row = tl.program_id(0)
    if IS_DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    if row < tl.load(num_rows):
        k = tl.arange(0, BLOCK)
        is_k = k < H
        slot = tl.load(slots + row).to(tl.int64)
        above = tl.load(slots + tl.maximum(row - 1, 0))
        token = tl.load(tokens + row).to(tl.int64)
        if token < 0:
            token = tl.maximum(tl.load(last_tokens + slot), 0).to(tl.int64)
        value = tl.load(embedding + token * H + k, mask=is_k, other=0).to(tl.float32)
        gain = tl.load(embedding_gain + k, mask=is_k, other=0).to(tl.float32)
        value = value * tl.rsqrt(tl.sum(value * value) / H + EPS) * gain
        tl.store(x + row.to(tl.int64) * 2 * H + k, value.to(x.dtype.element_ty), mask=is_k)
        if (row == 0) | (above != slot):
            before = tl.load(kept + slot * H + k, mask=is_k, other=0).to(tl.float32)
        else:
            before = tl.load(fused + (row - 1).to(tl.int64) * H + k, mask=is_k, other=0)
            before = before.to(tl.float32)
        gain = tl.load(hidden_gain + k, mask=is_k, other=0).to(tl.float32)
        before = before * tl.rsqrt(tl.sum(before * before) / H + EPS) * gain
        tl.store(x + row.to(tl.int64) * 2 * H + H + k, before.to(x.dtype.element_ty), mask=is_k)


@triton.jit
def head_write_kernel(
    slots,
    positions,
    num_rows,
    tables,
    kv,
    cosines,
    sines,
    cache,
    fused,
    last,
    kept,
    ends,
    TABLE_STRIDE: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEADS_BLOCK: tl.constexpr,
    D: tl.constexpr,
    SIZE: tl.constexpr,
    H: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_KEPT: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Grid (rows): K/V (rows, 2 * kv) into the cache, keys rotated; g where it is wanted later.

    `fused` goes to `last` by block where the row is its block's last position, of SIZE; with
    IS_KEPT a sequence's last row to `kept`, and where it ends to `ends` (slots) int64.
    """
    row = tl.program_id(0)
    if IS_DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    num = tl.load(num_rows)
    if row < num:
        KV: tl.constexpr = KV_HEADS * D
        HALF: tl.constexpr = D // 2
        slot = tl.load(slots + row).to(tl.int64)
        position = tl.load(positions + row)
        block = tl.load(tables + slot * TABLE_STRIDE + position // SIZE).to(tl.int64)
        head = tl.arange(0, HEADS_BLOCK)
        d = tl.arange(0, HALF)
        is_head = (head < KV_HEADS)[:, None]
        cos = tl.load(cosines + position * HALF + d)[None, :]
        sin = tl.load(sines + position * HALF + d)[None, :]
        source = kv + row.to(tl.int64) * 2 * KV + head[:, None] * D + d[None, :]
        low = tl.load(source, mask=is_head, other=0).to(tl.float32)
        high = tl.load(source + HALF, mask=is_head, other=0).to(tl.float32)
        low, high = rotated(low, high, cos, sin)
        to = cache + (block * SIZE + position % SIZE) * 2 * KV + head[:, None] * D + d[None, :]
        tl.store(to, low.to(cache.dtype.element_ty), mask=is_head)
        tl.store(to + HALF, high.to(cache.dtype.element_ty), mask=is_head)
        tl.store(to + KV, tl.load(source + KV, mask=is_head, other=0), mask=is_head)
        value = tl.load(source + KV + HALF, mask=is_head, other=0)
        tl.store(to + KV + HALF, value, mask=is_head)
        k = tl.arange(0, BLOCK)
        is_k = k < H
        if position % SIZE == SIZE - 1:
            g = tl.load(fused + row.to(tl.int64) * H + k, mask=is_k, other=0)
            tl.store(last + block * H + k, g, mask=is_k)
        if IS_KEPT:
            below = tl.load(slots + tl.minimum(row + 1, num - 1))
            if (row == num - 1) | (below != slot):
                g = tl.load(fused + row.to(tl.int64) * H + k, mask=is_k, other=0)
                tl.store(kept + slot * H + k, g, mask=is_k)
                tl.store(ends + slot, (position + 1).to(tl.int64))
