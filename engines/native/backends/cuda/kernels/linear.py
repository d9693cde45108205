"""bf16 weights times one row (`gemv_kernel`) or up to a thousand rows (`rows_kernel`)."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from engines.native.backends.cuda.kernels.launch import ask_for, dot


@triton.jit
def gemv_kernel(
    x,
    gain,
    weight,
    bias,
    y,
    N,
    K: tl.constexpr,
    K1: tl.constexpr,
    K2: tl.constexpr,
    BN: tl.constexpr,
    EPS: tl.constexpr,
    HAS_NORM: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    IS_ADDED: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Grid (N / BN): y = weight @ rms_norm(x) + bias.

    x (K) of any float type and y (N) float32; weight (N, K), gain (K) and bias (N) bf16.
    A program holds the whole of BN weight rows in registers, loaded before it waits for the
    kernel that makes x. K1 and K2 are powers of two, K1 < K <= K1 + K2. IS_ADDED: y += instead.
    """
    if IS_DEPENDENT:
        gdc_launch_dependents()
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    k1 = tl.arange(0, K1)
    k2 = K1 + tl.arange(0, K2)
    is_k2 = k2 < K
    rows = weight + n.to(tl.int64)[:, None] * K
    w1 = tl.load(rows + k1[None, :], eviction_policy="evict_first")
    w2 = tl.load(rows + k2[None, :], mask=is_k2[None, :], other=0, eviction_policy="evict_first")
    b = tl.zeros([BN], tl.float32)
    if HAS_BIAS:
        b = tl.load(bias + n).to(tl.float32)
    if HAS_NORM:
        g1 = tl.load(gain + k1).to(tl.float32)
        g2 = tl.load(gain + k2, mask=is_k2, other=0).to(tl.float32)
    if IS_DEPENDENT:
        gdc_wait()
    x1 = tl.load(x + k1).to(tl.float32)
    x2 = tl.load(x + k2, mask=is_k2, other=0).to(tl.float32)
    if HAS_NORM:
        scale = tl.rsqrt((tl.sum(x1 * x1) + tl.sum(x2 * x2)) / K + EPS)
        x1 *= g1
        x2 *= g2
    out = tl.sum(w1.to(tl.float32) * x1[None, :], 1) + tl.sum(w2.to(tl.float32) * x2[None, :], 1)
    if HAS_NORM:
        out *= scale
    out += b
    if IS_ADDED:
        out += tl.load(y + n)
    tl.store(y + n, out)


@triton.jit
def rows_kernel(
    x,
    weight,
    bias,
    y,
    parts,
    arrivals,
    N,
    stride,
    M: tl.constexpr,
    K: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    SPLITS: tl.constexpr,
    STAGES: tl.constexpr,
    PREFETCH: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    IS_ADDED: tl.constexpr,
    IS_SWAPPED: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Grid (N / BN * M / BM, SPLITS): y = x @ weight.T + bias; IS_ADDED: y += instead.

    x (M, K), weight (N, K) and bias (N) bf16, y (M, N) float32 with rows `stride` apart, arrivals
    (tiles) int32 zeros.
    Neighbouring programs share their weights. K is shared out over SPLITS programs; the last of
    them to arrive adds the parts (splits, M, N) in their order, so equal inputs give equal bits.
    IS_SWAPPED: the weights are the tensor cores' first operand, of which they take 64 rows, and
    the rows of x the second, of which 8 suffice. PREFETCH: of this many steps (a power of 2) the
    weights are asked for before the wait for the kernel that makes x.
    """
    tile = tl.program_id(0)
    split = tl.program_id(1)
    ROW_TILES: tl.constexpr = (M + BM - 1) // BM
    n = tile // ROW_TILES * BN + tl.arange(0, BN)
    m = tile % ROW_TILES * BM + tl.arange(0, BM)
    is_n = n < N
    is_m = m < M
    w_rows = weight + n.to(tl.int64) * K
    steps: tl.constexpr = ((K + BK - 1) // BK + SPLITS - 1) // SPLITS
    if IS_DEPENDENT:
        gdc_launch_dependents()
        if PREFETCH > 0:
            first = split * steps * BK
            line = first + tl.arange(0, PREFETCH * (BK // 64)) * 64
            rows = weight + tl.minimum(n, N - 1).to(tl.int64) * K
            ask_for(rows[:, None] + tl.minimum(line, K - 64)[None, :])
        gdc_wait()
    acc = tl.zeros([BN, BM], tl.float32) if IS_SWAPPED else tl.zeros([BM, BN], tl.float32)
    for step in tl.range(0, steps, num_stages=STAGES):
        k = (split * steps + step) * BK + tl.arange(0, BK)
        is_k = k < K
        if IS_SWAPPED:
            w = tl.load(
                w_rows[:, None] + k[None, :],
                mask=is_n[:, None] & is_k[None, :],
                other=0,
                eviction_policy="evict_first",
            )
            v = tl.load(
                x + m[None, :] * K + k[:, None], mask=is_m[None, :] & is_k[:, None], other=0
            )
            acc = dot(w, v, acc)
        else:
            w = tl.load(
                w_rows[None, :] + k[:, None],
                mask=is_n[None, :] & is_k[:, None],
                other=0,
                eviction_policy="evict_first",
            )
            v = tl.load(
                x + m[:, None] * K + k[None, :], mask=is_m[:, None] & is_k[None, :], other=0
            )
            acc = dot(v, w, acc)
    at = m[None, :] * N + n[:, None] if IS_SWAPPED else m[:, None] * N + n[None, :]
    is_at = is_m[None, :] & is_n[:, None] if IS_SWAPPED else is_m[:, None] & is_n[None, :]
    is_last = True
    if SPLITS > 1:
        tl.store(parts + split * M * N + at, acc, mask=is_at)
        tl.debug_barrier()
        is_last = tl.atomic_add(arrivals + tile, 1, sem="acq_rel") == SPLITS - 1
    if is_last:
        if SPLITS > 1:
            acc *= 0.0
            for s in tl.static_range(SPLITS):
                part = parts + s * M * N + at
                acc += tl.load(part, mask=is_at, other=0, cache_modifier=".cg")
            tl.store(arrivals + tile, 0)
        if HAS_BIAS:
            b = tl.load(bias + n, mask=is_n, other=0).to(tl.float32)
            acc += b[:, None] if IS_SWAPPED else b[None, :]
        to = m[None, :] * stride + n[:, None] if IS_SWAPPED else m[:, None] * stride + n[None, :]
        if IS_ADDED:
            acc += tl.load(y + to, mask=is_at, other=0)
        tl.store(y + to, acc, mask=is_at)
