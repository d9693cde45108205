"""What LoRA adapters add to a product, x @ down.T @ up.T, each row by the adapter of its own slot.

Rows of one adapter share tiles, as in Punica and S-LoRA (Chen et al. 2023, arXiv 2310.18547; Sheng
et al. 2023, arXiv 2311.03285): `group_kernel` makes the tiles once a step, `shrink_kernel` and
`expand_kernel` compute a product's. Rows without an adapter are in no tile, and nothing is written
for them.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from engines.native.backends.cuda.kernels.launch import ask_for, dot


@triton.jit
def _adapters(slots, adapters, row, num):
    """The adapters' places of rows; -1 for a row without one and for padding."""
    slot = tl.load(slots + row, mask=row < num, other=-1)
    place = tl.load(adapters + tl.maximum(slot, 0))
    return tl.where(slot >= 0, place, -1)


@triton.jit
def group_kernel(
    slots,
    adapters,
    num_rows,
    places,
    members,
    BM: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_BY_ROW: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Grid (rows): the tiles of up to BM rows of one adapter.

    slots (rows; below 0: padding), adapters (slots; -1: none), num_rows (1): int32, the rows from
    there on are padding. places (tiles) int32, -1 before: a tile's adapter; members (tiles, BM)
    int32: its rows in their order, -1 behind the last.
    The first row of a tile writes it. Its number is the row's, or without IS_BY_ROW the least that
    leaves room for the adapters of lower places: there are places + rows / BM tiles then.
    """
    row = tl.program_id(0)
    if IS_DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    num = tl.load(num_rows)
    own = _adapters(slots, adapters, row, num)
    if own >= 0:
        before = 0
        lower = 0
        for start in range(0, num, BLOCK):
            other = start + tl.arange(0, BLOCK)
            place = _adapters(slots, adapters, other, num)
            before += tl.sum(((place == own) & (other < row)).to(tl.int32))
            lower += tl.sum(((place >= 0) & (place < own)).to(tl.int32))
        if before % BM == 0:
            tile = row if IS_BY_ROW else lower // BM + own + before // BM
            tl.store(places + tile, own)
            found = 0
            for start in range(row // BLOCK * BLOCK, num, BLOCK):
                other = start + tl.arange(0, BLOCK)
                is_own = (_adapters(slots, adapters, other, num) == own) & (other >= row)
                at = found + tl.cumsum(is_own.to(tl.int32)) - 1
                tl.store(members + tile * BM + at, other, mask=is_own & (at < BM))
                found += tl.sum(is_own.to(tl.int32))
            at = tl.arange(0, BM)
            tl.store(members + tile * BM + at, -1, mask=at >= found)


@triton.jit
def shrink_kernel(
    x,
    gain,
    places,
    members,
    ranks,
    down,
    parts,
    x_stride,
    place_stride,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
    RANK: tl.constexpr,
    WIDTH: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    SPLITS: tl.constexpr,
    STAGES: tl.constexpr,
    LINES: tl.constexpr,
    EPS: tl.constexpr,
    HAS_NORM: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Grid (tiles, WIDTH / BN, SPLITS): parts[row, split] = x[row] @ down.T, of a part of K.

    x rows `x_stride` apart; ranks (places) int32; down (WIDTH, K) bf16 of each place,
    `place_stride` apart: the matrices of WIDTH / RANK products one below the other, each padded to
    RANK rows; parts (rows, SPLITS, WIDTH) float32. What lies beyond an adapter's rank is not
    computed.
    HAS_NORM: x is one row, which is normed first, with `gain` (K) bf16. LINES (a power of 2) of 64
    inputs are asked for before the wait for the kernel that makes x.
    """
    tile = tl.program_id(0)
    first = tl.program_id(1) * BN
    split = tl.program_id(2)
    steps: tl.constexpr = ((K + BK - 1) // BK + SPLITS - 1) // SPLITS
    if IS_DEPENDENT:
        gdc_launch_dependents()
    # Tiles are those of the whole step: they may be read before the wait.
    place = tl.load(places + tile, cache_modifier=".cg")
    rank = tl.load(ranks + tl.maximum(place, 0), cache_modifier=".cg")
    rows = tl.load(members + tile * BM + tl.arange(0, BM), cache_modifier=".cg")
    is_used = (place >= 0) & (first % RANK < rank)
    n = first + tl.arange(0, BN)
    w_rows = down + tl.maximum(place, 0).to(tl.int64) * place_stride + n[None, :] * K
    if IS_DEPENDENT:
        if is_used:
            k = split * steps * BK + tl.arange(0, LINES) * 64
            ask_for(w_rows + tl.minimum(k, K - 64)[:, None])
        gdc_wait()
    if is_used:
        is_row = rows >= 0
        scale = 1.0
        if HAS_NORM:
            every = tl.arange(0, BLOCK)
            whole = tl.load(x + every, mask=every < K, other=0).to(tl.float32)
            scale = tl.rsqrt(tl.sum(whole * whole) / K + EPS)
        x_rows = x + rows.to(tl.int64)[:, None] * x_stride
        acc = tl.zeros([BM, BN], tl.float32)
        for step in tl.range(0, steps, num_stages=STAGES):
            k = (split * steps + step) * BK + tl.arange(0, BK)
            is_k = k < K
            w = tl.load(w_rows + k[:, None], mask=is_k[:, None], other=0)
            v = tl.load(x_rows + k[None, :], mask=is_row[:, None] & is_k[None, :], other=0)
            if HAS_NORM:
                g = tl.load(gain + k, mask=is_k, other=0).to(tl.float32)
                v = v.to(tl.float32) * scale * g[None, :]
            acc = dot(v.to(tl.bfloat16), w, acc)
        to = (rows[:, None] * SPLITS + split) * WIDTH + n[None, :]
        tl.store(parts + to, acc, mask=is_row[:, None])


@triton.jit
def expand_kernel(
    parts,
    places,
    members,
    ranks,
    up,
    y,
    N,
    place_stride,
    RANK: tl.constexpr,
    WIDTH: tl.constexpr,
    END1: tl.constexpr,
    END2: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BR: tl.constexpr,
    SPLITS: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Grid (tiles, N / BN): y[row] += sum of parts[row] @ up.T.

    parts, places, members, ranks as in shrink_kernel; up (N, RANK) bf16 of each place; y (rows, N)
    of any float type. Columns up to END1 are the first product's, those up to END2 the second's,
    and the others the third's; BN divides both.
    """
    tile = tl.program_id(0)
    first = tl.program_id(1) * BN
    if IS_DEPENDENT:
        gdc_launch_dependents()
    place = tl.load(places + tile, cache_modifier=".cg")
    rank = tl.load(ranks + tl.maximum(place, 0), cache_modifier=".cg")
    rows = tl.load(members + tile * BM + tl.arange(0, BM), cache_modifier=".cg")
    own = up + tl.maximum(place, 0).to(tl.int64) * place_stride
    if IS_DEPENDENT:
        if place >= 0:
            line = first * RANK + tl.arange(0, BN * RANK // 64) * 64
            ask_for(own + tl.minimum(line, N * RANK - 64))
        gdc_wait()
    if place >= 0:
        is_row = rows >= 0
        of = (first >= END1).to(tl.int32) + (first >= END2).to(tl.int32)
        n = first + tl.arange(0, BN)
        is_n = n < N
        acc = tl.zeros([BM, BN], tl.float32)
        for begin in tl.range(0, rank, BR, num_stages=1):
            r = begin + tl.arange(0, BR)
            is_r = r < rank
            w = tl.load(
                own + n[None, :] * RANK + r[:, None], mask=is_n[None, :] & is_r[:, None], other=0
            )
            at = rows[:, None] * (SPLITS * WIDTH) + of * RANK + r[None, :]
            is_at = is_row[:, None] & is_r[None, :]
            low = tl.zeros([BM, BR], tl.float32)
            for split in tl.static_range(SPLITS):
                low += tl.load(parts + at + split * WIDTH, mask=is_at, other=0)
            acc = dot(low.to(tl.bfloat16), w, acc)
        to = y + rows.to(tl.int64)[:, None] * N + n[None, :]
        is_to = is_row[:, None] & is_n[None, :]
        tl.store(to, (tl.load(to, mask=is_to, other=0) + acc).to(y.dtype.element_ty), mask=is_to)
