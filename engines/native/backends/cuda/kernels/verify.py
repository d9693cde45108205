"""What a step that verifies drafts does besides decoding: several rows are of one sequence.

Rows of a sequence are contiguous: its last token, then its drafts. They
are decoded at once, each attending to those before it. `drafts` (rows) int32: the token of a
row that is a guess; -1 for a sequence's first row.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from engines.native.backends.cuda.kernels.attention import rotated, stored


@triton.jit
def embed_guesses_kernel(
    slots,
    token_ids,
    guesses,
    table,
    x,
    H: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Grid (rows): norm.embed_kernel, of the draft if the row is one."""
    row = tl.program_id(0)
    if IS_DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    k = tl.arange(0, BLOCK)
    guess = tl.load(guesses + row)
    token = tl.where(guess >= 0, guess, tl.load(token_ids + tl.load(slots + row)))
    token = tl.maximum(token, 0).to(tl.int64)
    value = tl.load(table + token * H + k, mask=k < H, other=0)
    tl.store(x + row * H + k, value.to(tl.float32), mask=k < H)


@triton.jit
def write_kv_kernel(
    qkv,
    cache,
    tables,
    slots,
    positions,
    num_rows,
    cosines,
    sines,
    TABLE_STRIDE: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Grid (kv_heads, rows): K/V of all rows into the cache, before any row attends to them.

    The attention kernel writes its row's again, the same bits.
    """
    head = tl.program_id(0)
    row = tl.program_id(1)
    if IS_DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    if row < tl.load(num_rows):
        Q: tl.constexpr = KV_HEADS * GROUP * D
        SLOT: tl.constexpr = 2 * KV_HEADS * D
        HALF: tl.constexpr = D // 2
        position = tl.load(positions + row)
        d = tl.arange(0, HALF)
        dv = tl.arange(0, D)
        cos = tl.load(cosines + position * HALF + d)
        sin = tl.load(sines + position * HALF + d)
        k = qkv + row * (Q + SLOT) + Q + head * D + d
        low, high = rotated(tl.load(k), tl.load(k + HALF), cos, sin)
        v = tl.load(qkv + row * (Q + SLOT) + Q + KV_HEADS * D + head * D + dv)
        table = tables + tl.load(slots + row).to(tl.int64) * TABLE_STRIDE
        slot = tl.load(table + position // BLOCK).to(tl.int64) * BLOCK + position % BLOCK
        to = cache + slot * SLOT + head * D
        tl.store(to + d, stored(low, cache))
        tl.store(to + HALF + d, stored(high, cache))
        tl.store(to + KV_HEADS * D + dv, stored(v, cache))


@triton.jit
def accept_kernel(
    sampled,
    guesses,
    firsts,
    slots,
    token_ids,
    num_rows,
    MOST: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Grid (rows): the token after a sequence's accepted drafts becomes its next input.

    `firsts` (rows): the first row of the row's sequence. MOST: a power of two, above the drafts
    of a sequence.
    """
    row = tl.program_id(0)
    if IS_DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    num = tl.load(num_rows)
    if row < num:
        first = tl.load(firsts + row)
        before = first + tl.arange(0, MOST)
        drawn = tl.load(sampled + before, mask=before < row, other=0)
        guessed = tl.load(guesses + before + 1, mask=before < row, other=0)
        is_reached = tl.sum((drawn != guessed).to(tl.int32)) == 0
        token = tl.load(sampled + row)
        guess = tl.load(guesses + row + 1, mask=row + 1 < num, other=-1)
        if is_reached & ((guess < 0) | (token != guess)):
            tl.store(token_ids + tl.load(slots + row), token)
