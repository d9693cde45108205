"""The logit that a token needs to stay in the draw: top_k, top_p and min_p, without a sort.

The floor is the least logit v whose weight above it, the sum over x > v, is under a target: k
tokens (top_k), or top_p of the weight of what the other filters leave (top_p). Two passes over the
row compare it with LEVELS thresholds each, which narrows the search to a 256th of the row's range;
what is left there is sorted. A search that is still too wide is halved until it is not. Sums are in
a fixed order: the floor depends on the row alone.
"""

from __future__ import annotations

import triton
import triton.language as tl

_LEAST = tl.constexpr(-5e29)  # logits under it are out, by a mask
_OUT = tl.constexpr(-1e30)
_ONE = tl.constexpr(float(1 << 40))  # the largest weight as a whole number

# Of a row's search, the columns of `state`.
_LOW = tl.constexpr(0)  # the floor is above it
_HIGH = tl.constexpr(1)  # and at most this
_ABOVE = tl.constexpr(2)  # the weight above _HIGH
_TARGET = tl.constexpr(3)  # under 0: not known yet, and top_p is its negative
_BEST = tl.constexpr(4)  # the largest logit
_SCALE = tl.constexpr(5)  # 1 / temperature; 0: each token weighs 1
_IS_ACTIVE = tl.constexpr(6)
STATES = 8

# Of a slot's numbers (float32) and whole numbers (int64): sampling/fields.py.
_TOP_P = tl.constexpr(0)
_LOG_MIN_P = tl.constexpr(1)
_TOP_K = tl.constexpr(0)


@triton.jit
def extent_kernel(
    logits, num_rows, part_most, part_least, V, PARTS: tl.constexpr, BLOCK: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Grid (PARTS, rows): the largest logit of each part of a row, and the least that is not out.

    logits (rows, V), part_most and part_least (rows, PARTS) float32.
    """
    part = tl.program_id(0)
    row = tl.program_id(1)
    if row < tl.load(num_rows):
        size = tl.cdiv(V, PARTS)
        most = tl.full([BLOCK], _OUT, tl.float32)
        least = tl.full([BLOCK], 3e38, tl.float32)
        for first in range(0, size, BLOCK):
            at = first + tl.arange(0, BLOCK)
            token = part * size + at
            is_in = (at < size) & (token < V)
            x = tl.load(logits + row.to(tl.int64) * V + token, mask=is_in, other=_OUT)
            most = tl.maximum(most, x)
            least = tl.minimum(least, tl.where(x > _LEAST, x, 3e38))
        tl.store(part_most + row * PARTS + part, tl.max(most))
        tl.store(part_least + row * PARTS + part, tl.min(least))


@triton.jit
def _set_levels(levels, row, low, first, high, LEVELS: tl.constexpr):
    """Thresholds: `low`, and others evenly from `first` to `high`, which is none."""
    i = tl.arange(0, LEVELS)
    value = first + (high - first) * (i.to(tl.float32) / LEVELS)
    tl.store(levels + row * LEVELS + i, tl.where(i == 0, low, tl.minimum(value, high)))


@triton.jit
def start_kernel(
    part_most, part_least, num_rows, slots, temperatures, numbers, wholes, floors, state, levels,
    counts, V, NUMBERS: tl.constexpr, WHOLES: tl.constexpr, IS_COUNT: tl.constexpr,
    PARTS: tl.constexpr, LEVELS: tl.constexpr, STATES: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Grid (rows): where each row's search begins: for top_k's floor (IS_COUNT), then for top_p's.

    numbers (slots, NUMBERS) float32 and wholes (slots, WHOLES) int64: sampling/fields.py; floors
    (rows) has top_k's floor when top_p's is sought, and gets min_p's; state (rows, STATES);
    counts (rows) int32 become zero.
    """
    row = tl.program_id(0)
    if row < tl.load(num_rows):
        slot = tl.load(slots + row)
        temperature = tl.load(temperatures + slot)
        i = tl.arange(0, PARTS)
        best = tl.max(tl.load(part_most + row * PARTS + i), 0)
        least = tl.min(tl.load(part_least + row * PARTS + i), 0)
        floor = tl.load(floors + row)
        if IS_COUNT:
            top_k = tl.load(wholes + slot * WHOLES + _TOP_K)
            is_active = (temperature > 0) & (top_k > 0) & (top_k < V)
            target = top_k.to(tl.float32)
            scale = 0.0
        else:
            top_p = tl.load(numbers + slot * NUMBERS + _TOP_P)
            is_active = (temperature > 0) & (top_p < 1.0)
            target = -top_p
            scale = 1.0 / tl.maximum(temperature, 1e-6)
            if temperature > 0:
                log_min_p = tl.load(numbers + slot * NUMBERS + _LOG_MIN_P)
                floor = tl.maximum(floor, best + tl.maximum(temperature, 1e-6) * log_min_p)
                tl.store(floors + row, floor)
        # The number before the floor; of zero, before all that count as zero.
        bits = floor.to(tl.int32, bitcast=True)
        low = tl.where(floor > 0, bits - 1, bits + 1).to(tl.float32, bitcast=True)
        low = tl.where(floor == 0, -1.1754944e-38, tl.maximum(low, _LEAST))
        tl.store(counts + row, 0)
        tl.store(state + row * STATES + _LOW, low)
        tl.store(state + row * STATES + _HIGH, best)
        tl.store(state + row * STATES + _ABOVE, 0.0)
        tl.store(state + row * STATES + _TARGET, target)
        tl.store(state + row * STATES + _BEST, best)
        tl.store(state + row * STATES + _SCALE, scale)
        tl.store(state + row * STATES + _IS_ACTIVE, is_active.to(tl.float32))
        _set_levels(levels, row, low, tl.maximum(low, tl.minimum(least, best)), best, LEVELS)


@triton.jit
def weigh_kernel(
    logits, num_rows, state, levels, part_weights, V, PARTS: tl.constexpr, BLOCK: tl.constexpr,
    LEVELS: tl.constexpr, STATES: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Grid (PARTS, rows): the weight above each threshold in each part: (rows, PARTS, LEVELS)."""
    part = tl.program_id(0)
    row = tl.program_id(1)
    if row < tl.load(num_rows) and tl.load(state + row * STATES + _IS_ACTIVE) > 0:
        best = tl.load(state + row * STATES + _BEST)
        scale = tl.load(state + row * STATES + _SCALE)
        level = tl.load(levels + row * LEVELS + tl.arange(0, LEVELS))
        size = tl.cdiv(V, PARTS)
        weights = tl.zeros([LEVELS, BLOCK], tl.float32)
        for first in range(0, size, BLOCK):
            at = first + tl.arange(0, BLOCK)
            token = part * size + at
            is_in = (at < size) & (token < V)
            x = tl.load(logits + row.to(tl.int64) * V + token, mask=is_in, other=_OUT)
            weight = tl.exp((x - best) * scale)
            weights += tl.where(x[None, :] > level[:, None], weight[None, :], 0.0)
        into = part_weights + (row * PARTS + part) * LEVELS + tl.arange(0, LEVELS)
        tl.store(into, tl.sum(weights, 1))


@triton.jit
def narrow_kernel(
    num_rows, state, levels, part_weights, PARTS: tl.constexpr, LEVELS: tl.constexpr,
    STATES: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Grid (rows): between which of its thresholds a row's floor lies, and thresholds there."""
    row = tl.program_id(0)
    if row < tl.load(num_rows) and tl.load(state + row * STATES + _IS_ACTIVE) > 0:
        i = tl.arange(0, LEVELS)
        part = tl.arange(0, PARTS)
        found = part_weights + (row * PARTS + part[:, None]) * LEVELS + i[None, :]
        weights = tl.sum(tl.load(found), 0)
        level = tl.load(levels + row * LEVELS + i)
        target = tl.load(state + row * STATES + _TARGET)
        if target < 0:
            target = -target * tl.sum(tl.where(i == 0, weights, 0.0))
            tl.store(state + row * STATES + _TARGET, target)
        is_met = weights < target
        first = tl.min(tl.where(is_met, i, LEVELS))
        if first == 0:  # fewer tokens than top_k are not out
            tl.store(state + row * STATES + _IS_ACTIVE, 0.0)
        low = tl.max(tl.where(i == first - 1, level, -3e38))
        high = tl.load(state + row * STATES + _HIGH)
        if first < LEVELS:
            high = tl.max(tl.where(i == first, level, -3e38))
            above = tl.max(tl.where(i == first, weights, 0.0))
            tl.store(state + row * STATES + _HIGH, high)
            tl.store(state + row * STATES + _ABOVE, above)
        tl.store(state + row * STATES + _LOW, low)
        _set_levels(levels, row, low, low, high, LEVELS)


@triton.jit
def gather_kernel(
    logits, num_rows, state, left, counts, V, PARTS: tl.constexpr, BLOCK: tl.constexpr,
    MOST: tl.constexpr, STATES: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Grid (PARTS, rows): the logits among which a row's floor is, in any order.

    left (rows, MOST) float32: the first MOST of them; counts (rows) int32: how many there are.
    """
    part = tl.program_id(0)
    row = tl.program_id(1)
    if row < tl.load(num_rows) and tl.load(state + row * STATES + _IS_ACTIVE) > 0:
        low = tl.load(state + row * STATES + _LOW)
        high = tl.load(state + row * STATES + _HIGH)
        size = tl.cdiv(V, PARTS)
        for first in range(0, size, BLOCK):
            at = first + tl.arange(0, BLOCK)
            token = part * size + at
            is_in = (at < size) & (token < V)
            x = tl.load(logits + row.to(tl.int64) * V + token, mask=is_in, other=_OUT)
            is_left = (x > low) & (x <= high)
            num = tl.sum(is_left.to(tl.int32))
            if num > 0:
                place = tl.atomic_add(counts + row, num)
                place += tl.cumsum(is_left.to(tl.int32), 0) - 1
                tl.store(left + row * MOST + place, x, mask=is_left & (place < MOST))


@triton.jit
def settle_kernel(
    logits, num_rows, state, left, counts, floors, V, BLOCK: tl.constexpr, MOST: tl.constexpr,
    STATES: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Grid (rows): each row's floor, from what is left.

    It does not reset `counts`: a warp that read its row's late would find zero, leave the search
    alone, and the others would wait for it without end.
    """
    row = tl.program_id(0)
    if row < tl.load(num_rows) and tl.load(state + row * STATES + _IS_ACTIVE) > 0:
        low = tl.load(state + row * STATES + _LOW)
        high = tl.load(state + row * STATES + _HIGH)
        above = tl.load(state + row * STATES + _ABOVE)
        target = tl.load(state + row * STATES + _TARGET)
        best = tl.load(state + row * STATES + _BEST)
        scale = tl.load(state + row * STATES + _SCALE)
        size = tl.load(counts + row)
        source = left + row.to(tl.int64) * MOST
        if size > MOST:  # all of the row again, with what is above too
            source = logits + row.to(tl.int64) * V
            size = V
            above = 0.0
        floor = high
        is_open = size > 0
        while is_open:  # each time the least or the largest of them goes, at least
            most = tl.full([BLOCK], -3e38, tl.float32)
            least = tl.full([BLOCK], 3e38, tl.float32)
            for first in range(0, size, BLOCK):
                i = first + tl.arange(0, BLOCK)
                x = tl.load(source + i, mask=i < size, other=_OUT)
                is_left = (x > low) & (x <= high)
                most = tl.maximum(most, tl.where(is_left, x, -3e38))
                least = tl.minimum(least, tl.where(is_left, x, 3e38))
            top = tl.max(most)
            floor = tl.min(least)
            is_open = floor < top
            if is_open:
                middle = floor + 0.5 * (top - floor)
                middle = tl.where(middle < top, middle, floor)
                weights = tl.zeros([BLOCK], tl.int64)
                for first in range(0, size, BLOCK):
                    i = first + tl.arange(0, BLOCK)
                    x = tl.load(source + i, mask=i < size, other=_OUT)
                    weight = (tl.exp((x - best) * scale) * _ONE).to(tl.int64)
                    weights += tl.where(x > middle, weight, 0)
                if above + tl.sum(weights).to(tl.float32) / _ONE < target:
                    high = middle
                else:
                    low = middle
        tl.store(floors + row, tl.maximum(tl.load(floors + row), floor))
