"""What the ranks of tensor parallelism add up, through each other's memory.

Each rank writes its part into the buffers of all others, and reads the parts that come into its
own: a word that is -0.0 has not come (writers turn -0.0 into 0.0). Who has read a place empties it.
Two places take turns: a rank writes its part of call n + 2 where that of call n was, and has then
read the others' parts of call n + 1, which they send once they have emptied those of call n.

All ranks make the same calls in the same order. `buffers` (RANKS) int64 has the addresses of all
ranks' buffers, float32 (2 turns, RANKS, `slot`); `offset` is where a turn begins.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from engines.native.backends.cuda.kernels.fragments import place
from engines.native.backends.cuda.kernels.launch import IS_INTERPRETED

_EMPTY = tl.constexpr(-2147483648)  # the bits of -0.0
_MOST_TRIES = tl.constexpr(1 << 26)  # half a minute at least: then the peer is gone


@triton.jit
def _buffer_of(buffers, rank):
    address = tl.load(buffers + rank).to(tl.pointer_type(tl.int32))
    return tl.multiple_of(address, 16)


@triton.jit
def _give_up():
    if not IS_INTERPRETED:
        tl.inline_asm_elementwise("trap; mov.u32 $0, 0;", "=r", [], tl.int32, False, 1)


@triton.jit
def add_norm_of_ranks_kernel(
    x, outputs, weights, gain, normed, placed, buffers, offset, slot, is_open,
    H: tl.constexpr, STRIDE: tl.constexpr, BLOCK: tl.constexpr, EPS: tl.constexpr,
    TOP_K: tl.constexpr, IS_WEIGHTED: tl.constexpr, IS_FRESH: tl.constexpr,
    IS_NORMED: tl.constexpr, IS_PLACED: tl.constexpr, RANK: tl.constexpr, RANKS: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Grid (rows, H / BLOCK): as add_norm_kernel, but what is added is the sum over all ranks.

    A rank's part is the sum of its own pairs, TOP_K 0: nothing. Parts are added in the order of
    ranks, so all ranks get the same bits. IS_FRESH: x is set and not added to. Without IS_NORMED
    `normed` gets x itself. While `is_open` (1) int32 is 0 nothing is waited for.
    """
    row = tl.program_id(0).to(tl.int64)
    if IS_DEPENDENT:
        gdc_launch_dependents()
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_k = k < H
    waits = tl.load(is_open)
    if IS_NORMED:
        g = tl.load(gain + k, mask=is_k, other=0).to(tl.float32)
    if IS_DEPENDENT:
        gdc_wait()
    own = tl.zeros([BLOCK], tl.float32)
    for choice in tl.static_range(TOP_K):
        pair = row * TOP_K + choice
        part = tl.load(outputs + pair * H + k, mask=is_k, other=0).to(tl.float32)
        own += tl.load(weights + pair) * part if IS_WEIGHTED else part
    sent = own.to(tl.int32, bitcast=True)
    sent = tl.where(sent == _EMPTY, 0, sent)
    at = offset + row * H + k
    for i in tl.static_range(1, RANKS):
        theirs = _buffer_of(buffers, (RANK + i) % RANKS)
        tl.store(theirs + RANK * slot + at, sent, mask=is_k)
    tl.debug_barrier()  # nothing is waited for before all is sent
    mine = _buffer_of(buffers, RANK)
    total = tl.zeros([BLOCK], tl.float32)
    for i in tl.static_range(RANKS):
        if i == RANK:
            total += own
        else:
            there = mine + i * slot + at
            came = tl.load(there, mask=is_k, other=0, volatile=True)
            tries = 0
            while (waits > 0) & (tl.max((came == _EMPTY).to(tl.int32), 0) > 0):
                came = tl.load(there, mask=is_k, other=0, volatile=True)
                tries += 1
                if tries > _MOST_TRIES:
                    _give_up()
            tl.store(there, tl.full([BLOCK], _EMPTY, tl.int32), mask=is_k)
            total += came.to(tl.float32, bitcast=True)
    v = total
    if not IS_FRESH:
        v = tl.load(x + row * H + k, mask=is_k, other=0) + total
    tl.store(x + row * H + k, v, mask=is_k)
    out = v
    if IS_NORMED:
        out = v * tl.rsqrt(tl.sum(v * v) / H + EPS) * g
    tl.store(normed + row * STRIDE + k, out.to(normed.dtype.element_ty), mask=is_k)
    if IS_PLACED:
        tl.store(placed + row * STRIDE + place(k), out.to(placed.dtype.element_ty), mask=is_k)


@triton.jit
def meet_kernel(
    buffers, offset, slot, is_open, RANK: tl.constexpr, RANKS: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Grid (1): what all ranks have written before, also into each other's memory, is there."""
    if IS_DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    waits = tl.load(is_open)
    for i in tl.static_range(1, RANKS):
        theirs = _buffer_of(buffers, (RANK + i) % RANKS) + RANK * slot + offset
        tl.atomic_xchg(theirs, 1, sem="release", scope="sys")
    mine = _buffer_of(buffers, RANK)
    for i in tl.static_range(1, RANKS):
        there = mine + ((RANK + i) % RANKS) * slot + offset
        came = tl.atomic_add(there, 0, sem="acquire", scope="sys")
        tries = 0
        while (waits > 0) & (came == _EMPTY):
            came = tl.atomic_add(there, 0, sem="acquire", scope="sys")
            tries += 1
            if tries > _MOST_TRIES:
                _give_up()
        tl.atomic_xchg(there, _EMPTY, sem="relaxed", scope="sys")
