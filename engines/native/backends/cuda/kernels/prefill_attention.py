"""Attention of a chunk of prompts: rotation and KV write, then flash attention over the pages.

A tile is BQ query tokens of one sequence, whose heads of one group are neighbours: the
product's rows are token * group + head. `tiles` (tiles, 4) int32: the row of `tables`, the first
token's row in the chunk, its position, the number of tokens (0: nothing to do).
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from engines.native.backends.cuda.kernels.attention import read, rotated, stored
from engines.native.backends.cuda.kernels.launch import dot


@triton.jit
def rotate_write_kernel(
    qkv,
    q,
    cache,
    tables,
    slots,
    positions,
    cosines,
    sines,
    TABLE_STRIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEADS: tl.constexpr,
    BH: tl.constexpr,
    D: tl.constexpr,
    SCALE: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Grid (tokens): q rotated and scaled, k rotated and v into the cache.

    What follows a sequence's last token in its block gets values of zero: a kernel that copies
    whole blocks may then multiply by what was there before, which another request left.
    qkv (tokens, (heads + 2 * kv_heads) * d), q (tokens, heads * d) and the cache as
    kernels/attention.py has it, the others bf16; `tables` (slots, blocks), `slots` (tokens) the row
    of it, -1 for padding, and `positions` (tokens) int32; cosines and sines (positions, d / 2)
    float32. BH: a power of two, at least the query heads. RoPE: Su et al. 2021, arXiv 2104.09864,
    halves apart.
    """
    token = tl.program_id(0).to(tl.int64)
    if IS_DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    SLOT: tl.constexpr = 2 * KV_HEADS * D
    HALF: tl.constexpr = D // 2
    slot = tl.load(slots + token)
    if slot >= 0:
        position = tl.load(positions + token)
        d = tl.arange(0, HALF)
        cos = tl.load(cosines + position * HALF + d)[None, :]
        sin = tl.load(sines + position * HALF + d)[None, :]
        source = qkv + token * (HEADS * D + SLOT)
        h = tl.arange(0, BH)
        is_h = (h < HEADS)[:, None]
        at = h[:, None] * D + d[None, :]
        low = tl.load(source + at, mask=is_h, other=0).to(tl.float32)
        high = tl.load(source + at + HALF, mask=is_h, other=0).to(tl.float32)
        low, high = rotated(low, high, cos, sin)
        to = q + token * (HEADS * D) + at
        tl.store(to, (low * SCALE).to(q.dtype.element_ty), mask=is_h)
        tl.store(to + HALF, (high * SCALE).to(q.dtype.element_ty), mask=is_h)
        at = tl.arange(0, KV_HEADS)[:, None] * D + d[None, :]
        source += HEADS * D
        low, high = rotated(
            tl.load(source + at).to(tl.float32),
            tl.load(source + at + HALF).to(tl.float32),
            cos,
            sin,
        )
        block = tl.load(tables + slot.to(tl.int64) * TABLE_STRIDE + position // BLOCK)
        to = cache + (block.to(tl.int64) * BLOCK + position % BLOCK) * SLOT
        tl.store(to + at, stored(low, cache))
        tl.store(to + at + HALF, stored(high, cache))
        values = tl.arange(0, KV_HEADS * D)
        v = tl.load(source + KV_HEADS * D + values)
        to += KV_HEADS * D + values
        tl.store(to, stored(v, cache))
        is_next = token + 1 < tl.num_programs(0)
        if tl.load(slots + token + 1, mask=is_next, other=-1) != slot:
            for _ in range(position % BLOCK + 1, BLOCK):
                to += SLOT
                tl.store(to, tl.zeros([KV_HEADS * D], cache.dtype.element_ty))


@triton.jit
def walk(
    query, position, peak, total, acc, cache, table, start, end, HEAD_STRIDE: tl.constexpr,
    SLOT: tl.constexpr, BLOCK: tl.constexpr, WINDOW: tl.constexpr, BT: tl.constexpr,
    STAGES: tl.constexpr, IS_MASKED: tl.constexpr,
):  # fmt: skip
    """Attend to keys `start` (a multiple of BT) to `end`; all of them are seen by every query
    unless IS_MASKED. `peak`, `total` and `acc` are the softmax so far."""
    D: tl.constexpr = query.shape[1]
    dv = tl.arange(0, D)
    for t0 in tl.range(start, end, BT, num_stages=STAGES):
        t = t0 + tl.arange(0, BT)
        is_t = t < end if IS_MASKED else t >= 0
        if BLOCK % BT == 0:
            block = tl.load(table + t0 // BLOCK).to(tl.int64)
            at = block * BLOCK + t0 % BLOCK + tl.arange(0, BT)
        else:
            block = tl.load(table + t // BLOCK, mask=is_t, other=0).to(tl.int64)
            at = block * BLOCK + t % BLOCK
        source = cache + at * SLOT
        if IS_MASKED:
            k = tl.load(source[None, :] + dv[:, None], mask=is_t[None, :], other=0)
            v = tl.load(source[:, None] + HEAD_STRIDE + dv[None, :], mask=is_t[:, None], other=0)
        else:
            k = tl.load(source[None, :] + dv[:, None])
            v = tl.load(source[:, None] + HEAD_STRIDE + dv[None, :])
        k, v = read(k), read(v)
        score = dot(query, k, tl.zeros([query.shape[0], BT], tl.float32))
        if IS_MASKED:
            is_seen = t[None, :] <= position[:, None]
            if WINDOW > 0:
                is_seen = is_seen & (t[None, :] > position[:, None] - WINDOW)
            score = tl.where(is_seen, score, -1e30)
        new_peak = tl.maximum(peak, tl.max(score, 1))
        weight = tl.exp2(score - new_peak[:, None])
        shrink = tl.exp2(peak - new_peak)
        acc = dot(weight.to(v.dtype), v, acc * shrink[:, None])
        total = total * shrink + tl.sum(weight, 1)
        peak = new_peak
    return peak, total, acc


@triton.jit
def prefill_attention_kernel(
    q,
    cache,
    tables,
    sinks,
    tiles,
    out,
    TABLE_STRIDE: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
    WINDOW: tl.constexpr,
    BQ: tl.constexpr,
    BT: tl.constexpr,
    STAGES: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Grid (tiles, kv_heads): attention of the tiles' queries to all they see in the cache.

    q (tokens, heads * d) bf16, rotated and scaled, log2(e) included; out of that shape; sinks
    (heads) bf16, a logit each that has no value. FlashAttention-2: Dao 2023, arXiv 2307.08691.
    """
    tile = tiles + tl.program_id(0) * 4
    head = tl.program_id(1)
    if IS_DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    num = tl.load(tile + 3)
    if num > 0:
        SLOT: tl.constexpr = 2 * KV_HEADS * D
        M: tl.constexpr = BQ * GROUP
        m = tl.arange(0, M)
        dv = tl.arange(0, D)
        token = m // GROUP
        is_m = token < num
        table = tables + tl.load(tile).to(tl.int64) * TABLE_STRIDE
        first = tl.load(tile + 2)
        row = (tl.load(tile + 1) + token).to(tl.int64)
        at = row * (KV_HEADS * GROUP * D) + (head * GROUP + m % GROUP) * D
        query = tl.load(q + at[:, None] + dv[None, :], mask=is_m[:, None], other=0)
        peak = tl.load(sinks + head * GROUP + m % GROUP).to(tl.float32) * 1.4426950408889634
        total = tl.full([M], 1.0, tl.float32)
        acc = tl.zeros([M, D], tl.float32)
        keys = cache + head * D
        start = tl.maximum(first - WINDOW + 1, 0) // BT * BT if WINDOW > 0 else 0
        if WINDOW == 0:
            start = (first + 1) // BT * BT  # keys before it are seen by all
            peak, total, acc = walk(
                query, first + token, peak, total, acc, keys, table, 0, start, KV_HEADS * D,
                SLOT, BLOCK, WINDOW, BT, STAGES, IS_MASKED=False,
            )  # fmt: skip
        peak, total, acc = walk(
            query, first + token, peak, total, acc, keys, table, start, first + num,
            KV_HEADS * D, SLOT, BLOCK, WINDOW, BT, STAGES, IS_MASKED=True,
        )  # fmt: skip
        value = (acc / total[:, None]).to(out.dtype.element_ty)
        tl.store(out + at[:, None] + dv[None, :], value, mask=is_m[:, None])
