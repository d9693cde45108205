"""The experts of many tokens: grouped products on the tensor cores, weights decoded in registers.

Reads the fragment order of the decode kernels, so one copy of the weights serves both. A tile
(`tile_kernel`) is BM pairs of one expert; its tokens are gathered while loading.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from engines.native.backends.cuda.kernels.launch import IS_INTERPRETED, dot


@triton.jit
def _load_tile(words, scales, tile, K: tl.constexpr, GROUPS: tl.constexpr):
    """bf16 weights (16 * GROUPS rows, 64 inputs) of one tile of neighbouring groups of rows.

    `words` are int16: the halves of the packed words.
    """
    group = tl.arange(0, GROUPS)[:, None]
    half = tl.arange(0, 256)[None, :]
    v = tl.load(words + group * (4 * K) + tile * 256 + half)
    g = tl.arange(0, 8)[None, :]
    s = tl.load(scales + group * (K // 6) + (tile // 3) * 32 + g * 4 + tile % 3)
    low0 = (v & -32768) | ((v >> 3) & 0x1C0)
    high0 = ((v << 3) & -32768) | (v & 0x1C0)
    low1 = ((v << 1) & -32768) | ((v << 3) & 0x1C0)
    high1 = ((v << 2) & -32768) | ((v << 6) & 0x1C0)
    # group g q block pair half, then inputs (2, 3) or (0, 1), then row g + 8 or g
    codes = tl.join(tl.join(low0, low1), tl.join(high0, high1))
    codes = tl.reshape(codes, [GROUPS, 8, 4, 2, 2, 2, 2, 2])
    codes = tl.permute(codes, [0, 7, 1, 3, 2, 4, 6, 5])  # group row g block q pair late half
    codes = tl.reshape(codes, [GROUPS, 2, 8, 2, 32])
    scale = tl.join(
        tl.join(_power(s, 0), _power(s, 16)),  # row g: blocks 0, 1
        tl.join(_power(s, 8), _power(s, 24)),  # row g + 8
    )  # group g block row
    scale = tl.permute(scale, [0, 3, 1, 2])[:, :, :, :, None]
    if IS_INTERPRETED:  # which has no bfloat16 arithmetic; either product is exact
        value = (codes.to(tl.int32) << 16).to(tl.float32, bitcast=True) * scale.to(tl.float32)
        return tl.reshape(value.to(tl.bfloat16), [16 * GROUPS, 64])
    return tl.reshape(codes.to(tl.bfloat16, bitcast=True) * scale, [16 * GROUPS, 64])


@triton.jit
def _power(s, SHIFT: tl.constexpr):
    """The bf16 scale of codes that are short of 2**126; stored exponents are raised by 14."""
    return ((((s >> SHIFT) & 0xFF) + 112) << 7).to(tl.int16).to(tl.bfloat16, bitcast=True)


@triton.jit
def gate_up_grouped_kernel(
    x,
    words,
    scales,
    bias,
    tiles,
    counts,
    pairs,
    h,
    K: tl.constexpr,
    INNER: tl.constexpr,
    X_STRIDE: tl.constexpr,
    H_STRIDE: tl.constexpr,
    CAPACITY: tl.constexpr,
    TOP_K: tl.constexpr,
    ALPHA: tl.constexpr,
    LIMIT: tl.constexpr,
    BM: tl.constexpr,
    GROUPS: tl.constexpr,
    STAGES: tl.constexpr,
    IS_SWAPPED: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Grid (INNER / 8 / GROUPS, tiles): h[pair] = SwiGLU(gate_up(x[token])), x and h bf16."""
    if IS_DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    tile = tl.load(tiles + tl.program_id(1))
    if tile >= 0:
        expert = tile // 65536
        group = tl.program_id(0) * GROUPS
        m = (tile % 65536) * BM + tl.arange(0, BM)
        is_m = m < tl.load(counts + expert)
        pair = tl.load(pairs + expert * CAPACITY + m, mask=is_m, other=0).to(tl.int64)
        k = tl.arange(0, 64)
        source = x + (pair // TOP_K)[:, None] * X_STRIDE + k[None, :]
        row = (expert * (INNER // 8) + group).to(tl.int64)
        acc = tl.zeros([16 * GROUPS, BM] if IS_SWAPPED else [BM, 16 * GROUPS], tl.float32)
        for t in tl.range(0, K // 64, num_stages=STAGES):
            v = tl.load(source + t * 64, mask=is_m[:, None], other=0)
            w = _load_tile(words + row * (4 * K), scales + row * (K // 6), t, K, GROUPS)
            acc = dot(w, tl.trans(v), acc) if IS_SWAPPED else dot(v, tl.trans(w), acc)
        if IS_SWAPPED:
            acc = tl.trans(acc)
        halves = tl.permute(tl.reshape(acc, [BM, GROUPS, 2, 8]), [0, 1, 3, 2])
        gate, up = tl.split(halves)
        i = group * 8 + tl.arange(0, 8 * GROUPS)
        b = bias + expert * 2 * INNER + 2 * i
        gate = tl.reshape(gate, [BM, 8 * GROUPS]) + tl.load(b).to(tl.float32)[None, :]
        up = tl.reshape(up, [BM, 8 * GROUPS]) + tl.load(b + 1).to(tl.float32)[None, :]
        gate = tl.minimum(gate, LIMIT)
        up = tl.minimum(tl.maximum(up, -LIMIT), LIMIT)
        out = gate * tl.sigmoid(ALPHA * gate) * (up + 1.0)
        at = h + pair[:, None] * H_STRIDE + i[None, :]
        tl.store(at, out.to(h.dtype.element_ty), mask=is_m[:, None])


@triton.jit
def down_grouped_kernel(
    h,
    words,
    scales,
    bias,
    tiles,
    counts,
    pairs,
    outputs,
    K: tl.constexpr,
    HIDDEN: tl.constexpr,
    H_STRIDE: tl.constexpr,
    CAPACITY: tl.constexpr,
    BM: tl.constexpr,
    GROUPS: tl.constexpr,
    STAGES: tl.constexpr,
    IS_SWAPPED: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Grid (HIDDEN / 16 / GROUPS, tiles): outputs[pair] = down(h[pair]) + bias."""
    if IS_DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    tile = tl.load(tiles + tl.program_id(1))
    if tile >= 0:
        expert = tile // 65536
        group = tl.program_id(0) * GROUPS
        m = (tile % 65536) * BM + tl.arange(0, BM)
        is_m = m < tl.load(counts + expert)
        pair = tl.load(pairs + expert * CAPACITY + m, mask=is_m, other=0).to(tl.int64)
        k = tl.arange(0, 64)
        source = h + pair[:, None] * H_STRIDE + k[None, :]
        row = (expert * (HIDDEN // 16) + group).to(tl.int64)
        acc = tl.zeros([16 * GROUPS, BM] if IS_SWAPPED else [BM, 16 * GROUPS], tl.float32)
        for t in tl.range(0, K // 64, num_stages=STAGES):
            v = tl.load(source + t * 64, mask=is_m[:, None], other=0)
            w = _load_tile(words + row * (4 * K), scales + row * (K // 6), t, K, GROUPS)
            acc = dot(w, tl.trans(v), acc) if IS_SWAPPED else dot(v, tl.trans(w), acc)
        if IS_SWAPPED:
            acc = tl.trans(acc)
        r = group * 16 + tl.arange(0, 16 * GROUPS)
        acc += tl.load(bias + expert * HIDDEN + r).to(tl.float32)[None, :]
        at = outputs + pair[:, None] * HIDDEN + r[None, :]
        tl.store(at, acc.to(outputs.dtype.element_ty), mask=is_m[:, None])
