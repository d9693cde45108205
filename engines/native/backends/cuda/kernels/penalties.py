"""What changes logits before the filters: grammars' masks, logit_bias, and penalties by counts on
the device."""

from __future__ import annotations

import triton
import triton.language as tl

# Of a slot's numbers (float32) and whole numbers (int64): sampling/fields.py.
_REPETITION = tl.constexpr(2)
_INVERSE_REPETITION = tl.constexpr(3)
_FREQUENCY = tl.constexpr(4)
_PRESENCE = tl.constexpr(5)
_COUNTS = tl.constexpr(2)
_BIAS_IDS = tl.constexpr(3)
_BIASES = tl.constexpr(4)
_NUM_BIASES = tl.constexpr(5)


@triton.jit
def mask_kernel(
    logits, num_rows, masks, V, OUT: tl.constexpr, BLOCK: tl.constexpr, IS_DEPENDENT: tl.constexpr
):
    """Grid (parts, rows): put the tokens out whose bit in the row's mask is not set.

    masks (rows) int64: the address of a mask (words of 32 tokens) int32; 0: the row has none.
    """
    row = tl.program_id(1)
    if row < tl.load(num_rows):
        address = tl.load(masks + row)
        if address != 0:
            token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
            words = address.to(tl.pointer_type(tl.int32))
            word = tl.load(words + token // 32, mask=token < V, other=-1)
            is_out = ((word >> (token % 32)) & 1) == 0
            place = logits + row.to(tl.int64) * V + token
            tl.store(place, tl.full((BLOCK,), OUT, tl.float32), mask=is_out & (token < V))


@triton.jit
def bias_kernel(
    logits, num_rows, slots, wholes, V, WHOLES: tl.constexpr, BLOCK: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Grid (rows): add the slot's logit_bias to the tokens that it names, each once."""
    row = tl.program_id(0)
    if row < tl.load(num_rows):
        of_slot = wholes + tl.load(slots + row) * WHOLES
        num = tl.load(of_slot + _NUM_BIASES)
        if num > 0:
            ids = tl.load(of_slot + _BIAS_IDS).to(tl.pointer_type(tl.int32))
            values = tl.load(of_slot + _BIASES).to(tl.pointer_type(tl.float32))
            for first in range(0, num.to(tl.int32), BLOCK):
                i = first + tl.arange(0, BLOCK)
                token = tl.load(ids + i, mask=i < num, other=0)
                value = tl.load(values + i, mask=i < num, other=0.0)
                place = logits + row.to(tl.int64) * V + token
                x = tl.load(place, mask=i < num, other=0.0)
                tl.store(place, x + value, mask=i < num)


@triton.jit
def penalty_kernel(
    logits, num_rows, slots, numbers, wholes, V, NUMBERS: tl.constexpr, WHOLES: tl.constexpr,
    BLOCK: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Grid (parts, rows): the three penalties of a slot that has counts, in place.

    Counts (V) int32: how often a token is in the answer; negative if it is in the prompt too.
    """
    row = tl.program_id(1)
    if row < tl.load(num_rows):
        slot = tl.load(slots + row)
        address = tl.load(wholes + slot * WHOLES + _COUNTS)
        if address != 0:
            token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
            count = tl.load(address.to(tl.pointer_type(tl.int32)) + token, mask=token < V, other=0)
            if tl.max((count != 0).to(tl.int32)) > 0:
                of_slot = numbers + slot * NUMBERS
                repetition = tl.load(of_slot + _REPETITION)
                inverse = tl.load(of_slot + _INVERSE_REPETITION)
                place = logits + row.to(tl.int64) * V + token
                x = tl.load(place, mask=token < V, other=0.0)
                times = (count & 0x7FFFFFFF).to(tl.float32)
                x = tl.where(count != 0, x * tl.where(x > 0, inverse, repetition), x)
                presence = tl.where(times > 0, tl.load(of_slot + _PRESENCE), 0.0)
                x -= tl.load(of_slot + _FREQUENCY) * times + presence
                tl.store(place, x, mask=token < V)


@triton.jit
def count_kernel(
    num_rows, slots, wholes, sampled, WHOLES: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Grid (rows): count each sampled token in its slot; one below 0 is none."""
    row = tl.program_id(0)
    if row < tl.load(num_rows):
        address = tl.load(wholes + tl.load(slots + row) * WHOLES + _COUNTS)
        token = tl.load(sampled + row)
        if (address != 0) & (token >= 0):
            place = address.to(tl.pointer_type(tl.int32)) + token
            tl.store(place, tl.load(place) + 1)
