"""The log-probabilities of sampled tokens and of the likeliest, of the model's own logits."""

from __future__ import annotations

import triton
import triton.language as tl

_NUM_TOP = tl.constexpr(1)  # of a slot's whole numbers: sampling/fields.py
_OUT = tl.constexpr(-3e38)


@triton.jit
def top_kernel(
    logits, num_rows, slots, wholes, copies, part_most, part_sum, part_ids, part_top, V,
    PARTS: tl.constexpr, WHOLES: tl.constexpr, MOST: tl.constexpr, BLOCK: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Grid (PARTS, rows): the likeliest tokens of each part of BLOCK, before anything changes them.

    Of slots that want log-probabilities: part_most (rows, PARTS) the largest logit, part_sum the
    sum of exp(logit - largest), part_ids and part_top (rows, PARTS, MOST) as many as are wanted,
    best first, of equal ones the first. copies (rows) int64: where a copy of the row goes; 0: none.
    """
    part = tl.program_id(0)
    row = tl.program_id(1)
    if row < tl.load(num_rows):
        num_top = tl.load(wholes + tl.load(slots + row) * WHOLES + _NUM_TOP).to(tl.int32)
        if num_top >= 0:
            token = part * BLOCK + tl.arange(0, BLOCK)
            x = tl.load(logits + row.to(tl.int64) * V + token, mask=token < V, other=_OUT)
            address = tl.load(copies + row)
            if address != 0:
                tl.store(address.to(tl.pointer_type(tl.float32)) + token, x, mask=token < V)
            most = tl.max(x)
            tl.store(part_most + row * PARTS + part, most)
            tl.store(part_sum + row * PARTS + part, tl.sum(tl.exp(x - most)))
            into = (row * PARTS + part) * MOST
            for i in range(num_top):
                best = tl.max(x)
                at = tl.min(tl.where(x == best, token, V - 1))
                tl.store(part_ids + into + i, at)
                tl.store(part_top + into + i, best)
                x = tl.where(token == at, -float("inf"), x)


@triton.jit
def told_kernel(
    logits, num_rows, slots, wholes, copies, sampled, part_most, part_sum, part_ids, part_top,
    told_ids, told, V, PARTS: tl.constexpr, ALL: tl.constexpr, WHOLES: tl.constexpr,
    MOST: tl.constexpr, WIDTH: tl.constexpr, STRIDE: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Grid (rows): the sampled token's log-probability, and the likeliest with theirs.

    told (rows, STRIDE) float32: the sampled token's, then up to MOST of the likeliest; told_ids,
    int32 in the same memory: behind them, their ids. ALL and WIDTH: powers of 2 that hold PARTS and
    MOST.
    """
    row = tl.program_id(0)
    if row < tl.load(num_rows):
        num_top = tl.load(wholes + tl.load(slots + row) * WHOLES + _NUM_TOP).to(tl.int32)
        if num_top >= 0:
            part = tl.arange(0, ALL)
            each = tl.load(part_most + row * PARTS + part, mask=part < PARTS, other=_OUT)
            sums = tl.load(part_sum + row * PARTS + part, mask=part < PARTS, other=0.0)
            most = tl.max(each)
            total = tl.log(tl.sum(sums * tl.exp(each - most)))
            token = tl.maximum(tl.load(sampled + row), 0)
            address = tl.load(copies + row)
            if address != 0:
                chosen = tl.load(address.to(tl.pointer_type(tl.float32)) + token)
            else:
                chosen = tl.load(logits + row.to(tl.int64) * V + token)
            tl.store(told + row * STRIDE, chosen - most - total)
            i = tl.arange(0, WIDTH)
            at = (row * PARTS + part[:, None]) * MOST + i[None, :]
            is_in = (part[:, None] < PARTS) & (i[None, :] < num_top)
            x = tl.load(part_top + at, mask=is_in, other=-float("inf"))
            ids = tl.load(part_ids + at, mask=is_in, other=V)
            for n in range(num_top):
                best = tl.max(tl.max(x, 1), 0)
                best_id = tl.min(tl.min(tl.where(x == best, ids, V), 1), 0)
                tl.store(told + row * STRIDE + 1 + n, best - most - total)
                tl.store(told_ids + row * STRIDE + 1 + MOST + n, best_id)
                x = tl.where(ids == best_id, -float("inf"), x)
