"""Which experts compute which tokens: router, choice, softmax and the experts' lists.

Written for the experts' kernels: `active` (slots) the experts that have work, each with 65536 times
its rows, then -1, or `tiles` of their rows and `counts` (experts) of these; `pairs` (experts,
capacity) these rows as token * top_k + rank, tokens ascending; `weights` (tokens * top_k) by pair.
A token's ranks ascend with the expert.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from engines.native.backends.cuda.kernels.launch import dot


@triton.jit
def _choose(logits, is_expert, TOP_K: tl.constexpr):
    """The best TOP_K of each row of logits (rows, experts): a 0/1 mask, and their softmax."""
    E: tl.constexpr = logits.shape[1]
    left = tl.where(is_expert, logits, -1e30)
    best = tl.max(left, 1)
    chosen = tl.zeros(logits.shape, tl.int32)
    experts = tl.arange(0, E)[None, :]
    for _ in tl.static_range(TOP_K):
        hit = experts == tl.argmax(left, 1)[:, None]
        chosen = tl.where(hit, 1, chosen)
        left = tl.where(hit, -3e38, left)
    share = tl.where(chosen == 1, tl.exp(logits - best[:, None]), 0.0)
    return chosen, share / tl.sum(share, 1)[:, None]


@triton.jit
def nth_best(logits, n, E: tl.constexpr, BE: tl.constexpr):
    """The expert with the n-th largest of the logits (E) of one row, from 0 on."""
    e = tl.arange(0, BE)
    left = tl.load(logits + e, mask=e < E, other=-1e30, cache_modifier=".cg")
    expert = tl.argmax(left, 0)
    for _ in tl.range(0, n):
        left = tl.where(e == expert, -3e38, left)
        expert = tl.argmax(left, 0)
    return tl.minimum(expert, E - 1)


@triton.jit
def nth_share(logits, n, E: tl.constexpr, BE: tl.constexpr, TOP_K: tl.constexpr):
    """The same and its share of the softmax of the TOP_K largest."""
    e = tl.arange(0, BE)
    left = tl.load(logits + e, mask=e < E, other=-1e30, cache_modifier=".cg")
    best = tl.max(left, 0)
    expert, share, total = 0, 0.0, 0.0
    for k in tl.static_range(TOP_K):
        value, at = tl.max(left, 0, return_indices=True)
        left = tl.where(e == at, -3e38, left)
        power = tl.exp(value - best)
        total += power
        expert = tl.where(n == k, at, expert)
        share = tl.where(n == k, power, share)
    return tl.minimum(expert, E - 1), share / total


@triton.jit
def route_one_kernel(
    x,
    gain,
    weight,
    bias,
    normed,
    logits,
    H: tl.constexpr,
    BLOCK: tl.constexpr,
    EPS: tl.constexpr,
    EACH: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Grid (E / EACH): norm and logits of one row; the readers choose (`nth_best`).

    x (H) and logits (E) float32, gain (H), weight (E, H) and bias (E) bf16, normed (H) fp16.
    """
    block = tl.program_id(0)
    if IS_DEPENDENT:
        gdc_launch_dependents()
    k = tl.arange(0, BLOCK)
    is_k = k < H
    g = tl.load(gain + k, mask=is_k, other=0).to(tl.float32)
    if EACH == 1:  # before the wait: the weights do not depend on anything
        w = tl.load(weight + block * H + k, mask=is_k, other=0).to(tl.float32)
    if IS_DEPENDENT:
        gdc_wait()
    v = tl.load(x + k, mask=is_k, other=0)
    v = v * tl.rsqrt(tl.sum(v * v) / H + EPS) * g
    if block == 0:
        tl.store(normed + k, v.to(tl.float16), mask=is_k)
    for i in tl.static_range(EACH):
        expert = block * EACH + i
        if EACH > 1:
            w = tl.load(weight + expert * H + k, mask=is_k, other=0).to(tl.float32)
        tl.store(logits + expert, tl.sum(v * w) + tl.load(bias + expert).to(tl.float32))


@triton.jit
def route_few_kernel(
    x,
    gain,
    weight,
    bias,
    num_rows,
    normed,
    logits,
    arrivals,
    active,
    pairs,
    weights,
    M: tl.constexpr,
    BM: tl.constexpr,
    H: tl.constexpr,
    STRIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    E: tl.constexpr,
    BE: tl.constexpr,
    EACH: tl.constexpr,
    SLOTS: tl.constexpr,
    CAPACITY: tl.constexpr,
    TOP_K: tl.constexpr,
    EPS: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Grid (E / EACH, M): norm and EACH logits a program; the last to arrive chooses.

    x (M, H) float32; gain (H), weight (E, H) and bias (E) bf16; normed (M, STRIDE) fp16; logits
    (M, E) float32; num_rows (1) and arrivals (1) int32.
    Rows from num_rows[0] on are padding and get no experts.
    """
    block = tl.program_id(0)
    row = tl.program_id(1)
    if IS_DEPENDENT:
        gdc_launch_dependents()
    k = tl.arange(0, BLOCK)
    is_k = k < H
    g = tl.load(gain + k, mask=is_k, other=0).to(tl.float32)
    if EACH == 1:  # before the wait: the weights do not depend on anything
        w = tl.load(weight + block * H + k, mask=is_k, other=0).to(tl.float32)
    if IS_DEPENDENT:
        gdc_wait()
    v = tl.load(x + row * H + k, mask=is_k, other=0)
    v = v * tl.rsqrt(tl.sum(v * v) / H + EPS) * g
    if block == 0:
        tl.store(normed + row * STRIDE + k, v.to(tl.float16), mask=is_k)
    for i in tl.static_range(EACH):
        expert = block * EACH + i
        if EACH > 1:
            w = tl.load(weight + expert * H + k, mask=is_k, other=0).to(tl.float32)
        tl.store(logits + row * E + expert, tl.sum(v * w) + tl.load(bias + expert).to(tl.float32))
    tl.debug_barrier()
    arrived = tl.atomic_add(arrivals, 1, sem="acq_rel")
    if arrived == (E // EACH) * M - 1:
        e = tl.arange(0, BE)
        m = tl.arange(0, BM)
        is_e = e < E
        is_row = m < tl.load(num_rows)
        at = m[:, None] * E + e[None, :]
        is_at = is_row[:, None] & is_e[None, :]
        value = tl.load(logits + at, mask=is_at, other=-1e30, cache_modifier=".cg")
        chosen, share = _choose(value, is_e[None, :], TOP_K)
        chosen = tl.where(is_at, chosen, 0)
        rank = tl.cumsum(chosen, 1) - 1
        pair = m[:, None] * TOP_K + rank
        tl.store(weights + pair, share, mask=chosen == 1)
        place = tl.cumsum(chosen, 0) - 1
        tl.store(pairs + e[None, :] * CAPACITY + place, pair, mask=chosen == 1)
        num = tl.sum(chosen, 0)
        is_active = (num > 0).to(tl.int32)
        slot = tl.cumsum(is_active, 0) - 1
        tl.store(active + slot, num * 65536 + e, mask=num > 0)
        rest = tl.sum(is_active, 0) + e
        tl.store(active + rest, tl.full([BE], -1, tl.int32), mask=rest < SLOTS)
        tl.store(arrivals, 0)


@triton.jit
def choose_kernel(
    x,
    weight,
    bias,
    num_rows,
    is_wanted,
    experts,
    weights,
    M,
    H: tl.constexpr,
    STRIDE: tl.constexpr,
    E: tl.constexpr,
    BM: tl.constexpr,
    BE: tl.constexpr,
    BK: tl.constexpr,
    STAGES: tl.constexpr,
    TOP_K: tl.constexpr,
    IS_CHOSEN: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Grid (M / BM): experts int32 and weights float32 (M, TOP_K) of rows; -1 for padding.

    x (M, STRIDE) normed, of any float type; weight (E, H) and bias (E) bf16; num_rows (1) and
    is_wanted (M) int32.
    IS_CHOSEN: rows that are not wanted are padding, too.
    """
    if IS_DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    e = tl.arange(0, BE)
    is_e = e < E
    is_row = m < tl.load(num_rows)
    if IS_CHOSEN:
        is_row = is_row & (tl.load(is_wanted + m, mask=m < M, other=0) != 0)
    acc = tl.zeros([BM, BE], tl.float32)
    for first in tl.range(0, H, BK, num_stages=STAGES):
        k = first + tl.arange(0, BK)
        is_k = k < H
        v = tl.load(
            x + m.to(tl.int64)[:, None] * STRIDE + k[None, :],
            mask=is_row[:, None] & is_k[None, :],
            other=0,
        )
        w = tl.load(
            weight + e[None, :] * H + k[:, None], mask=is_k[:, None] & is_e[None, :], other=0
        )
        acc = dot(v.to(w.dtype), w, acc)
    acc += tl.load(bias + e, mask=is_e, other=0).to(tl.float32)[None, :]
    chosen, share = _choose(acc, is_e[None, :], TOP_K)
    rank = tl.cumsum(chosen, 1) - 1
    at = m[:, None] * TOP_K + rank
    named = tl.where(is_row[:, None], tl.broadcast_to(e[None, :], [BM, BE]), -1)
    is_stored = (chosen == 1) & (m < M)[:, None]
    tl.store(experts + at, named, mask=is_stored)
    tl.store(weights + at, share, mask=is_stored)


@triton.jit
def list_kernel(
    experts,
    num_pairs,
    counts,
    pairs,
    tiles,
    arrivals,
    E: tl.constexpr,
    BE: tl.constexpr,
    BM: tl.constexpr,
    NUM_TILES: tl.constexpr,
    CAPACITY: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Grid (E): each gathers its own pairs, in order; the last to arrive makes the tiles.

    experts (num_pairs) int32, -1 for padding; the lists, all int32, as this module's head says.
    tiles[i] = expert * 65536 + number of the BM rows of it, -1 from the last on. BM 0: `active`
    instead, in as many slots.
    """
    if IS_DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    expert = tl.program_id(0)
    count = 0
    for first in tl.range(0, num_pairs, BLOCK, num_stages=2):
        pair = first + tl.arange(0, BLOCK)
        is_mine = tl.load(experts + pair, mask=pair < num_pairs, other=-1) == expert
        at = count + tl.cumsum(is_mine.to(tl.int32), 0) - 1
        tl.store(pairs + expert * CAPACITY + at, pair, mask=is_mine)
        count += tl.sum(is_mine.to(tl.int32), 0)
    tl.store(counts + expert, count)
    tl.debug_barrier()
    if tl.atomic_add(arrivals, 1, sem="acq_rel") == E - 1:
        e = tl.arange(0, BE)
        counted = tl.load(counts + e, mask=e < E, other=0, cache_modifier=".cg")
        if BM > 0:
            num = (counted + BM - 1) // BM
            start = tl.cumsum(num, 0) - num
            for i in tl.range(0, tl.max(num, 0)):
                tl.store(tiles + start + i, e * 65536 + i, mask=i < num)
        else:
            num = (counted > 0).to(tl.int32)
            start = tl.cumsum(num, 0) - num
            tl.store(tiles + start, counted * 65536 + e, mask=num > 0)
        for after in tl.range(tl.sum(num, 0), NUM_TILES, BE):
            tl.store(tiles + after + e, tl.full([BE], -1, tl.int32), mask=after + e < NUM_TILES)
        tl.store(arrivals, 0)
