"""Attention of a chunk of prompts on Hopper: FlashAttention-3's schedule, in Gluon.

One program on each multiprocessor takes tiles in turn. One of its warps has the copy engine bring
K/V, up to STAGES steps of BT keys ahead. Three warpgroups compute 64 rows of the tile each. They
take turns with the tensor cores: while one multiplies, the others are at their softmax. Tiles,
tables, rows and results are those of prefill_attention.py, which serves all other GPUs and
windows. FlashAttention-3: Shah et al. 2024, arXiv 2407.08608.

Gluon has no interpreter: these kernels are tested on a GPU alone.
"""

from __future__ import annotations

import math
from typing import Any, Final

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

_load: Final = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared  # before 3.9

ROWS: Final = 192  # of a tile: 64 for each of three warpgroups


def pages(cache: Tensor, kv_heads: int, head_dim: int, block_size: int, keys: int) -> Any:
    """The cache of one layer as the copy engine takes it: boxes of keys in one block, by head."""
    box = [math.gcd(block_size, keys), head_dim]
    rows = cache.view(-1, 2 * kv_heads * head_dim)
    return TensorDescriptor.from_tensor(rows, box, gl.NVMMASharedLayout(128, 16, rank=2))


@gluon.jit
def _tile(
    tiles, num_tiles, work, KV_HEADS: gl.constexpr, WINDOW: gl.constexpr, BT: gl.constexpr
):  # fmt: skip
    """One piece of work: a head of one tile.

    All heads of the last tile come first: tiles are sorted by what they see, so that no program
    gets a second long one before each has one. Returns its head, the tile's table, first row, first
    position and number of tokens; the first key and the number of steps, and of how many steps
    every query sees all keys.
    """
    tile = tiles + (num_tiles - 1 - work // KV_HEADS) * 4
    first = gl.load(tile + 2)
    num = gl.load(tile + 3)
    start = gl.maximum(first - WINDOW + 1, 0) // BT * BT if WINDOW > 0 else first * 0
    steps = (first + num - start + BT - 1) // BT
    whole = first * 0 if WINDOW > 0 else (first + 1) // BT
    return work % KV_HEADS, gl.load(tile), gl.load(tile + 1), first, num, start, steps, whole


@gluon.jit
def _copy(pages, table, start, last, column, to, is_full, BLOCK: gl.constexpr, BT: gl.constexpr):
    """Ask for BT rows from the position `start` on; past the box `last` it is taken again."""
    BOX: gl.constexpr = pages.block_type.shape[0]
    D: gl.constexpr = pages.block_type.shape[1]
    mbarrier.expect(is_full, BT * D * 2)
    for j in gl.static_range(BT // BOX):
        box = gl.minimum(start // BOX + j, last)
        block = gl.load(table + box // (BLOCK // BOX))
        row = block * BLOCK + box % (BLOCK // BOX) * BOX
        part = to if BT == BOX else to.slice(j * BOX, BOX, 0)
        _load(pages, [row, column], is_full, part)


@gluon.jit
def _bring(
    pages, tables, tiles, num_tiles, buffers, barriers, TABLE_STRIDE: gl.constexpr,
    KV_HEADS: gl.constexpr, D: gl.constexpr, BLOCK: gl.constexpr, WINDOW: gl.constexpr,
    BT: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """The warp that asks for the K/V of all steps, each as soon as its buffer is free."""
    k_buffer, v_buffer = buffers
    k_full, v_full, k_empty, v_empty, _turns = barriers
    BOX: gl.constexpr = pages.block_type.shape[0]
    at = gl.to_tensor(0)  # steps of all tiles before
    for work in range(gl.program_id(0), num_tiles * KV_HEADS, gl.num_programs(0)):
        head, slot, _, first, num, start, steps, _ = _tile(
            tiles, num_tiles, work, KV_HEADS, WINDOW, BT
        )  # fmt: skip
        table = tables + slot.to(gl.int64) * TABLE_STRIDE
        last = (first + num - 1) // BOX
        for i in range(steps):
            stage = at % STAGES
            phase = (at // STAGES) & 1 ^ 1
            t = start + i * BT
            mbarrier.wait(k_empty.index(stage), phase)
            _copy(
                pages, table, t, last, head * D, k_buffer.index(stage), k_full.index(stage), BLOCK,
                BT,
            )  # fmt: skip
            mbarrier.wait(v_empty.index(stage), phase)
            _copy(
                pages, table, t, last, (KV_HEADS + head) * D, v_buffer.index(stage),
                v_full.index(stage), BLOCK, BT,
            )  # fmt: skip
            at += 1


@gluon.jit
def _halves(x):
    """(rows, columns) as its first and its second half of columns, which one thread holds both."""
    halves = x.reshape([x.shape[0], 2, x.shape[1] // 2]).permute([0, 2, 1])
    return gl.split(halves)


@gluon.jit
def _folded(x, IS_SUM: gl.constexpr):
    """(rows, columns) -> (rows, 8): sums or maxima of every eighth column, as a tree."""
    if x.shape[1] > 8:
        low, high = _halves(x)
        y = _folded(low + high if IS_SUM else gl.maximum(low, high), IS_SUM)
    else:
        y = x
    return y


@gluon.jit
def _softmax(
    score, peak, total, position, t0, WINDOW: gl.constexpr, IS_MASKED: gl.constexpr,
    LAYOUT: gl.constexpr, BT: gl.constexpr,
):  # fmt: skip
    """The weights of BT keys from t0 on, what the sums so far shrink by, and the softmax's peak
    and total (64, 8), which stays in parts, with these keys."""
    if IS_MASKED:
        t = t0 + gl.arange(0, BT, layout=gl.SliceLayout(0, LAYOUT))
        is_seen = t[None, :] <= position[:, None]
        if WINDOW > 0:
            is_seen = is_seen & (t[None, :] > position[:, None] - WINDOW)
        score = gl.where(is_seen, score, -1e30)
    ROW: gl.constexpr = gl.SliceLayout(1, LAYOUT)
    new_peak = gl.maximum(peak, gl.convert_layout(gl.max(_folded(score, False), 1), ROW))
    weight = gl.exp2(score - new_peak[:, None])
    shrink = gl.exp2(peak - new_peak)
    part = _folded(weight, True)
    its = gl.convert_layout(shrink, gl.SliceLayout(1, part.type.layout))
    total = gl.convert_layout(total, part.type.layout) * its[:, None] + part
    return weight, shrink, new_peak, total


@gluon.jit
def _packed(weight):
    """(rows, columns) float32 -> (rows, columns / 2) int32, two bf16 each: a loop that carries
    bf16 itself keeps each in a register of its own."""
    low, high = gl.split(weight.reshape([weight.shape[0], weight.shape[1] // 2, 2]))
    return gl.inline_asm_elementwise(
        "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", [low, high], dtype=gl.int32, is_pure=True, pack=1
    )


@gluon.jit
def _unpacked(pairs, LAYOUT: gl.constexpr):
    low = pairs.to(gl.int16).to(gl.bfloat16, bitcast=True)
    high = (pairs >> 16).to(gl.int16).to(gl.bfloat16, bitcast=True)
    both = gl.join(low, high).reshape([pairs.shape[0], 2 * pairs.shape[1]])
    return gl.convert_layout(both, LAYOUT)


@gluon.jit
def _turn(step, WARPGROUP: gl.constexpr):
    """The parity of the warpgroup's turn with the tensor cores; the first one's first is free."""
    return step & 1 ^ (1 if WARPGROUP == 0 else 0)


@gluon.jit
def _walk(
    query, buffers, barriers, peak, total, acc, pairs, position, start, at, begin, end,
    WINDOW: gl.constexpr, IS_MASKED: gl.constexpr, BT: gl.constexpr, STAGES: gl.constexpr,
    LAYOUT: gl.constexpr, SUMS: gl.constexpr, WARPGROUP: gl.constexpr,
):  # fmt: skip
    """Steps `begin` (1 or more) to `end` of a tile. `pairs` are the weights of the step before,
    whose values are there; `at`: steps of all tiles before."""
    k_buffer, v_buffer = buffers
    k_full, v_full, k_empty, v_empty, turns = barriers
    for i in range(begin, end):
        stage = (at + i) % STAGES
        phase = ((at + i) // STAGES) & 1
        before = (at + i - 1) % STAGES
        weight = _unpacked(pairs, gl.DotOperandLayout(0, SUMS, 2))
        mbarrier.wait(k_full.index(stage), phase)
        mbarrier.wait(turns.index(WARPGROUP), _turn(at + i, WARPGROUP))
        score = gl.zeros([64, BT], gl.float32, LAYOUT)
        key = k_buffer.index(stage).permute((1, 0))
        score = warpgroup_mma(query, key, score, use_acc=False, is_async=True)
        acc = warpgroup_mma(weight, v_buffer.index(before), acc, is_async=True)
        score, acc = warpgroup_mma_wait(0, deps=[score, acc])
        mbarrier.arrive(turns.index((WARPGROUP + 1) % 3), count=1)
        mbarrier.arrive(k_empty.index(stage), count=1)
        mbarrier.arrive(v_empty.index(before), count=1)
        weight, shrink, peak, total = _softmax(
            score, peak, total, position, start + i * BT, WINDOW, IS_MASKED, LAYOUT, BT
        )
        mbarrier.wait(v_full.index(stage), phase)
        pairs = _packed(weight)
        acc = acc * gl.convert_layout(shrink, gl.SliceLayout(1, SUMS))[:, None]
    return peak, total, acc, pairs


@gluon.jit
def _multiply(
    q, sinks, tiles, num_tiles, out, q_buffer, buffers, barriers, WARPGROUP: gl.constexpr,
    KV_HEADS: gl.constexpr, GROUP: gl.constexpr, D: gl.constexpr, WINDOW: gl.constexpr,
    BT: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """A warpgroup's 64 rows of every tile."""
    k_buffer, v_buffer = buffers
    k_full, v_full, k_empty, v_empty, turns = barriers
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BT, 16])
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    FLAT: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    query = q_buffer.index(WARPGROUP)
    m = WARPGROUP * 64 + gl.arange(0, 64, layout=gl.SliceLayout(1, FLAT))
    d = gl.arange(0, D, layout=gl.SliceLayout(0, FLAT))
    its_m = WARPGROUP * 64 + gl.arange(0, 64, layout=gl.SliceLayout(1, LAYOUT))
    at = gl.to_tensor(0)  # steps of all tiles before
    for work in range(gl.program_id(0), num_tiles * KV_HEADS, gl.num_programs(0)):
        head, _, row, first, num, start, steps, whole = _tile(
            tiles, num_tiles, work, KV_HEADS, WINDOW, BT
        )  # fmt: skip
        to = (row + m // GROUP).to(gl.int64) * (KV_HEADS * GROUP * D)
        to = (to + (head * GROUP + m % GROUP) * D)[:, None] + d[None, :]
        is_m = (m // GROUP < num)[:, None]
        query.store(gl.load(q + to, mask=is_m, other=0))
        fence_async_shared()
        position = first + its_m // GROUP
        sink = gl.load(sinks + head * GROUP + its_m % GROUP).to(gl.float32)
        stage = at % STAGES
        phase = (at // STAGES) & 1
        mbarrier.wait(k_full.index(stage), phase)
        score = gl.zeros([64, BT], gl.float32, LAYOUT)
        key = k_buffer.index(stage).permute((1, 0))
        mbarrier.wait(turns.index(WARPGROUP), _turn(at, WARPGROUP))
        score = warpgroup_mma(query, key, score, use_acc=False, is_async=True)
        score = warpgroup_mma_wait(0, deps=[score])
        mbarrier.arrive(turns.index((WARPGROUP + 1) % 3), count=1)
        mbarrier.arrive(k_empty.index(stage), count=1)
        total = gl.full([64, 8], 0.125, gl.float32, FLAT)  # the sink's weight is 1
        weight, _shrink, peak, total = _softmax(
            score, sink * 1.4426950408889634, total, position, start, WINDOW, True, LAYOUT, BT
        )
        pairs = _packed(weight)
        acc = gl.zeros([64, D], gl.float32, SUMS)
        mbarrier.wait(v_full.index(stage), phase)
        whole = gl.maximum(whole, 1)
        if WINDOW == 0:
            peak, total, acc, pairs = _walk(
                query, buffers, barriers, peak, total, acc, pairs, position, start, at, 1, whole,
                WINDOW, False, BT, STAGES, LAYOUT, SUMS, WARPGROUP,
            )  # fmt: skip
        peak, total, acc, pairs = _walk(
            query, buffers, barriers, peak, total, acc, pairs, position, start, at, whole, steps,
            WINDOW, True, BT, STAGES, LAYOUT, SUMS, WARPGROUP,
        )  # fmt: skip
        at += steps
        stage = (at - 1) % STAGES
        weight = _unpacked(pairs, gl.DotOperandLayout(0, SUMS, 2))
        acc = warpgroup_mma(weight, v_buffer.index(stage), acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(v_empty.index(stage), count=1)
        total = gl.convert_layout(gl.sum(total, 1), gl.SliceLayout(1, SUMS))
        acc = acc / total[:, None]
        gl.store(out + to, gl.convert_layout(acc.to(out.dtype.element_ty), FLAT), mask=is_m)


@gluon.jit
def hopper_attention_kernel(
    q,
    pages,
    tables,
    sinks,
    tiles,
    num_tiles,
    out,
    TABLE_STRIDE: gl.constexpr,
    KV_HEADS: gl.constexpr,
    GROUP: gl.constexpr,
    D: gl.constexpr,
    BLOCK: gl.constexpr,
    WINDOW: gl.constexpr,
    BT: gl.constexpr,
    STAGES: gl.constexpr,
    IS_DEPENDENT: gl.constexpr,
):
    """Grid (programs): attention of the tiles' queries to all they see in the cache.

    A tile has up to ROWS / GROUP tokens; GROUP divides 64. `pages` is the cache; `num_tiles` (1)
    int32; the rest as in prefill_attention_kernel. Keys up to the end of a tile's last block are
    multiplied, those that no query sees by zero: their values must be finite.
    """
    gl.static_assert(not IS_DEPENDENT)
    q_buffer = gl.allocate_shared_memory(q.dtype.element_ty, [3, 64, D], pages.layout)
    k_buffer = gl.allocate_shared_memory(q.dtype.element_ty, [STAGES, BT, D], pages.layout)
    v_buffer = gl.allocate_shared_memory(q.dtype.element_ty, [STAGES, BT, D], pages.layout)
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    turns = gl.allocate_shared_memory(gl.int64, [3, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(3):
        mbarrier.init(turns.index(i), count=1)
    for i in gl.static_range(STAGES):
        mbarrier.init(k_full.index(i), count=1)
        mbarrier.init(v_full.index(i), count=1)
        mbarrier.init(k_empty.index(i), count=3)
        mbarrier.init(v_empty.index(i), count=3)
    fence_async_shared()
    num = gl.load(num_tiles)
    buffers = (k_buffer, v_buffer)
    barriers = (k_full, v_full, k_empty, v_empty, turns)
    gl.warp_specialize(
        [
            (
                _multiply,
                (q, sinks, tiles, num, out, q_buffer, buffers, barriers, 0, KV_HEADS, GROUP, D,
                 WINDOW, BT, STAGES),
            ),
            (
                _multiply,
                (q, sinks, tiles, num, out, q_buffer, buffers, barriers, 1, KV_HEADS, GROUP, D,
                 WINDOW, BT, STAGES),
            ),
            (
                _multiply,
                (q, sinks, tiles, num, out, q_buffer, buffers, barriers, 2, KV_HEADS, GROUP, D,
                 WINDOW, BT, STAGES),
            ),
            (
                _bring,
                (pages, tables, tiles, num, buffers, barriers, TABLE_STRIDE, KV_HEADS, D, BLOCK,
                 WINDOW, BT, STAGES),
            ),
        ],
        [4, 4, 1],  # warps of all but the first
        [160, 160, 32],  # registers of a thread of theirs; the first gets what is left, 160
    )  # fmt: skip
