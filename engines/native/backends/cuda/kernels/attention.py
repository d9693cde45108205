"""Attention of a decode step over the paged KV cache: RoPE, KV write and sinks included.

The query heads that share a K/V head are the rows of one product. A long context is split over
programs, whose parts the last to arrive combines in order; a split holds at least MIN_SPLIT
positions, so that one captured graph serves a short context without a combination and a long one.

The cache of one layer is (slots, 2, kv_heads, head_dim): slot = block * block_size + offset, keys
before values, of a float type or as the bytes of e4m3 numbers. `tables` (sequences, blocks) has
each sequence's blocks, `slots` a row's sequence.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from engines.native.backends.cuda.kernels.launch import dot


@triton.jit
def rotated(low, high, cos, sin):
    """Both halves of a head, rotated."""
    return low * cos - high * sin, high * cos + low * sin


@triton.jit
def read(cached):
    """K/V of the cache in the type that is multiplied."""
    if cached.dtype == tl.uint8:
        cached = cached.to(tl.float8e4nv, bitcast=True).to(tl.bfloat16)
    return cached


@triton.jit
def stored(value, cache):
    KV: tl.constexpr = cache.dtype.element_ty
    if tl.uint8 == KV:
        value = tl.minimum(tl.maximum(value.to(tl.float32), -448.0), 448.0)
        value = value.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    else:
        value = value.to(KV)
    return value


@triton.jit
def _tile(
    cache, table, t0, end, head, KV_HEADS: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
    WINDOW: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    """K/V of BT positions from t0 on, zero from `end` on: both halves of the keys (D / 2, BT), the
    values (BT, D) and which positions are before `end`."""
    SLOT: tl.constexpr = 2 * KV_HEADS * D
    HALF: tl.constexpr = D // 2
    d = tl.arange(0, HALF)
    dv = tl.arange(0, D)
    t = t0 + tl.arange(0, BT)
    is_t = t < end
    if WINDOW == 0 and BLOCK % BT == 0:
        block = tl.load(table + t0 // BLOCK).to(tl.int64)
        at = block * BLOCK + t0 % BLOCK + tl.arange(0, BT)
    else:
        block = tl.load(table + t // BLOCK, mask=is_t, other=0).to(tl.int64)
        at = block * BLOCK + t % BLOCK
    at = cache + at * SLOT + head * D
    k_low = tl.load(at[None, :] + d[:, None], mask=is_t[None, :], other=0)
    k_high = tl.load(at[None, :] + HALF + d[:, None], mask=is_t[None, :], other=0)
    v = tl.load(at[:, None] + KV_HEADS * D + dv[None, :], mask=is_t[:, None], other=0)
    return read(k_low), read(k_high), read(v), is_t


@triton.jit
def _attend(q_low, q_high, k_low, k_high, v, is_t, peak, total, acc, BT: tl.constexpr):
    """The running softmax over one more tile."""
    score = dot(q_high, k_high, dot(q_low, k_low, tl.zeros([16, BT], tl.float32)))
    score = tl.where(is_t[None, :], score, -1e30)
    new_peak = tl.maximum(peak, tl.max(score, 1))
    weight = tl.exp(score - new_peak[:, None])
    shrink = tl.exp(peak - new_peak)
    acc = dot(weight.to(v.dtype), v, acc * shrink[:, None])
    total = total * shrink + tl.sum(weight, 1)
    return new_peak, total, acc


@triton.jit
def decode_attention_kernel(
    qkv,
    cache,
    tables,
    sinks,
    slots,
    positions,
    num_rows,
    cosines,
    sines,
    part_out,
    part_max,
    part_sum,
    arrivals,
    out,
    TABLE_STRIDE: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
    WINDOW: tl.constexpr,
    SPLITS: tl.constexpr,
    MIN_SPLIT: tl.constexpr,
    BT: tl.constexpr,
    STAGES: tl.constexpr,
    SCALE: tl.constexpr,
    IS_EARLY: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Grid (kv_heads, SPLITS, rows): one token a row; WINDOW 0 sees all before it.

    qkv (rows, q + 2 * kv) float32 before rotation; out (rows, q) of any float type; cosines and
    sines (positions, D / 2) float32; sinks (heads) bf16; slots, positions (rows), num_rows (1) and
    tables int32. Splits of the context: Flash-Decoding, Dao et al. 2023. IS_EARLY:
    the first tile of K/V is loaded before the wait for the kernel that makes qkv, and so no kernel
    of the same step may write what a row sees of the cache.
    """
    head = tl.program_id(0)
    split = tl.program_id(1)
    row = tl.program_id(2)
    if IS_DEPENDENT:
        gdc_launch_dependents()
    Q: tl.constexpr = KV_HEADS * GROUP * D
    SLOT: tl.constexpr = 2 * KV_HEADS * D
    HALF: tl.constexpr = D // 2
    position = tl.load(positions + row)
    start = tl.maximum(position - WINDOW + 1, 0) if WINDOW > 0 else 0
    share = tl.cdiv(tl.cdiv(position - start, SPLITS), BT) * BT
    share = tl.maximum(share, MIN_SPLIT)
    num_splits = tl.maximum(tl.cdiv(position - start, share), 1)
    if (split < num_splits) & (row < tl.load(num_rows)):
        i = tl.arange(0, 16)  # query heads of the group, padded to what the tensor cores take
        d = tl.arange(0, HALF)
        dv = tl.arange(0, D)
        is_i = i < GROUP
        first = start + split * share
        end = tl.minimum(first + share, position)
        table = tables + tl.load(slots + row).to(tl.int64) * TABLE_STRIDE
        if IS_EARLY:
            k_low, k_high, v, is_t = _tile(
                cache, table, first, end, head, KV_HEADS, D, BLOCK, WINDOW, BT
            )
        cos = tl.load(cosines + position * HALF + d)
        sin = tl.load(sines + position * HALF + d)
        sink = tl.load(sinks + head * GROUP + i, mask=is_i, other=0).to(tl.float32)
        if IS_DEPENDENT:
            gdc_wait()
        source = qkv + row * (Q + SLOT)
        q = source + (head * GROUP + i)[:, None] * D + d[None, :]
        low = tl.load(q, mask=is_i[:, None], other=0)
        high = tl.load(q + HALF, mask=is_i[:, None], other=0)
        low, high = rotated(low, high, cos[None, :], sin[None, :])
        KV: tl.constexpr = cache.dtype.element_ty
        q_low = (low * SCALE).to(tl.bfloat16 if tl.uint8 == KV else KV)
        q_high = (high * SCALE).to(tl.bfloat16 if tl.uint8 == KV else KV)
        peak = tl.full([16], -1e30, tl.float32)
        total = tl.zeros([16], tl.float32)
        acc = tl.zeros([16, D], tl.float32)
        if split == 0:  # the token itself, and the sink
            k = source + Q + head * D + d
            its_low, its_high = rotated(tl.load(k), tl.load(k + HALF), cos, sin)
            its_low = stored(its_low, cache)
            its_high = stored(its_high, cache)
            its_v = stored(tl.load(source + Q + KV_HEADS * D + head * D + dv), cache)
            slot = tl.load(table + position // BLOCK).to(tl.int64) * BLOCK + position % BLOCK
            to = cache + slot * SLOT + head * D
            tl.store(to + d, its_low)
            tl.store(to + HALF + d, its_high)
            tl.store(to + KV_HEADS * D + dv, its_v)
            own = q_low.to(tl.float32) * read(its_low).to(tl.float32)[None, :]
            own += q_high.to(tl.float32) * read(its_high).to(tl.float32)[None, :]
            score = tl.sum(own, 1)
            peak = tl.maximum(score, sink)
            weight = tl.exp(score - peak)
            total = weight + tl.exp(sink - peak)
            acc = weight[:, None] * read(its_v).to(tl.float32)[None, :]
        if IS_EARLY:
            peak, total, acc = _attend(q_low, q_high, k_low, k_high, v, is_t, peak, total, acc, BT)
            first += BT
        if not IS_EARLY or WINDOW == 0 or WINDOW > BT:
            for t0 in tl.range(first, end, BT, num_stages=1 if WINDOW > 0 else STAGES):
                k_low, k_high, v, is_t = _tile(
                    cache, table, t0, end, head, KV_HEADS, D, BLOCK, WINDOW, BT
                )
                peak, total, acc = _attend(
                    q_low, q_high, k_low, k_high, v, is_t, peak, total, acc, BT
                )
        to = out + row * Q + (head * GROUP + i)[:, None] * D + dv[None, :]
        if num_splits == 1:
            tl.store(to, (acc / total[:, None]).to(out.dtype.element_ty), mask=is_i[:, None])
        else:
            base = (row * KV_HEADS + head) * SPLITS
            part = (base + split) * 16 + i
            tl.store(part_out + part[:, None] * D + dv[None, :], acc)
            tl.store(part_max + part, peak)
            tl.store(part_sum + part, total)
            tl.debug_barrier()
            arrival = arrivals + row * KV_HEADS + head
            if tl.atomic_add(arrival, 1, sem="acq_rel") == num_splits - 1:
                peak = tl.full([16], -1e30, tl.float32)
                total = tl.zeros([16], tl.float32)
                acc = tl.zeros([16, D], tl.float32)
                for s in tl.range(0, num_splits, num_stages=1):
                    part = (base + s) * 16 + i
                    its_peak = tl.load(part_max + part, cache_modifier=".cg")
                    its_total = tl.load(part_sum + part, cache_modifier=".cg")
                    its_out = tl.load(
                        part_out + part[:, None] * D + dv[None, :], cache_modifier=".cg"
                    )
                    new_peak = tl.maximum(peak, its_peak)
                    mine = tl.exp(peak - new_peak)
                    its = tl.exp(its_peak - new_peak)
                    acc = acc * mine[:, None] + its_out * its[:, None]
                    total = total * mine + its_total * its
                    peak = new_peak
                tl.store(to, (acc / total[:, None]).to(out.dtype.element_ty), mask=is_i[:, None])
                tl.store(arrival, 0)
    else:
        if IS_DEPENDENT and split == 0:  # a kernel of which none waits would end too early
            gdc_wait()
