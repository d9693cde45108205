"""The experts of a decode step: streamed MXFP4 weights times a few rows each.

Weights stream: each program walks along the inputs of 16 output rows (or twice 16, sharing the
activations), the next supertile's words being loaded while this one's are multiplied. Few warps
and many programs keep the memory busy.

Routing (kernels/router.py) has named the active experts, and for each its *pairs*: token times
experts per token plus a rank. Every pair has its own row of activations and of outputs, and rows
are added up in the order of their ranks: nothing is added atomically, so equal steps give equal
bits.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from engines.native.backends.cuda.kernels.fragments import (
    load_columns,
    load_supertiles,
    product_8,
)
from engines.native.backends.cuda.kernels.launch import ask_for
from engines.native.backends.cuda.kernels.router import nth_best, nth_share


@triton.jit
def _multiply(
    words,
    scales,
    expert,
    base,
    x,
    is_in,
    K: tl.constexpr,
    STEP: tl.constexpr,
    SIDE: tl.constexpr,
    GROUPS: tl.constexpr,
    STAGES: tl.constexpr,
    IS_WAITING: tl.constexpr,
):
    """SIDE * GROUPS groups of rows times the 8 columns at base + x.

    Warps stand side by side over SIDE groups or, if that is 1, over STEP supertiles of the inputs;
    either way each thread has GROUPS groups, SIDE apart, which share its activations. STAGES: this
    many steps less one of weights are on their way to shared memory while one is multiplied;
    without, the next step's are loaded into registers. IS_WAITING: the first are asked for before
    the wait for the kernel that makes x. Returns two accumulators (SIDE, 128),
    each as `product_8` lays them: of the first groups and of the second, 0 if there is none.
    """
    NUM: tl.constexpr = K // 192
    STEPS: tl.constexpr = (NUM + STEP - 1) // STEP
    N: tl.constexpr = SIDE * STEP
    side = tl.arange(0, N) // STEP
    offset = tl.arange(0, N) % STEP
    words += side * (2 * K)
    scales += side * (K // 6)
    more = words + SIDE * 2 * K
    more_s = scales + SIDE * (K // 6)
    a = tl.zeros([N, 128], tl.float32)
    b = tl.zeros([N, 128], tl.float32)
    if STAGES > 0:
        tl.static_assert(SIDE == 1, "side by side, Triton 3.6 gave wrong numbers with stages")
        for step in tl.range(0, STEPS, num_stages=STAGES):
            now = step * STEP + offset
            w0, w1, w2, s = load_supertiles(words, scales, now, NUM)
            if GROUPS == 2:
                v0, v1, v2, vs = load_supertiles(more, more_s, now, NUM)
            c0 = tl.zeros([N, 128], tl.int32)
            c1, c2, c3, c4, c5 = c0, c0, c0, c0, c0
            if expert > -2:  # always: what is loaded here Triton does not take into its pipeline
                if IS_WAITING:
                    gdc_wait()
                at = base + x[None, :] + now[:, None] * 96
                is_now = is_in[None, :] & (now < NUM)[:, None]
                c0, c1, c2, c3, c4, c5 = load_columns(at, is_now)
            a += product_8(w0, w1, w2, s, c0, c1, c2, c3, c4, c5)
            if GROUPS == 2:
                b += product_8(v0, v1, v2, vs, c0, c1, c2, c3, c4, c5)
    else:
        w0, w1, w2, s = load_supertiles(words, scales, offset, NUM)
        v0, v1, v2, vs = w0, w1, w2, s
        if GROUPS == 2:
            v0, v1, v2, vs = load_supertiles(more, more_s, offset, NUM)
        if IS_WAITING:
            gdc_wait()
        for step in tl.range(0, STEPS, num_stages=1):
            now = step * STEP + offset
            n0, n1, n2, ns = load_supertiles(words, scales, now + STEP, NUM)
            if GROUPS == 2:
                m0, m1, m2, ms = load_supertiles(more, more_s, now + STEP, NUM)
            at = base + x[None, :] + now[:, None] * 96
            c0, c1, c2, c3, c4, c5 = load_columns(at, is_in[None, :] & (now < NUM)[:, None])
            a += product_8(w0, w1, w2, s, c0, c1, c2, c3, c4, c5)
            if GROUPS == 2:
                b += product_8(v0, v1, v2, vs, c0, c1, c2, c3, c4, c5)
            w0, w1, w2, s = n0, n1, n2, ns
            if GROUPS == 2:
                v0, v1, v2, vs = m0, m1, m2, ms
    if STEP > 1:
        tl.static_assert(SIDE == 1, "warps split the inputs or stand side by side, not both")
        a = tl.sum(a, 0, keep_dims=True)
        b = tl.sum(b, 0, keep_dims=True)
    return a, b


@triton.jit
def _swiglu(v, bias, SIDE: tl.constexpr, ALPHA: tl.constexpr, LIMIT: tl.constexpr):
    """Accumulators (SIDE, 128) of 8 gates and 8 ups by 8 columns -> (SIDE, 64), one each."""
    gate, up = tl.split(tl.permute(tl.reshape(v, [SIDE, 32, 2, 2]), [0, 1, 3, 2]))
    gate = tl.reshape(gate, [SIDE, 64]) + tl.load(bias)
    up = tl.reshape(up, [SIDE, 64]) + tl.load(bias + 1)
    gate = tl.minimum(gate, LIMIT)
    up = tl.minimum(tl.maximum(up, -LIMIT), LIMIT)
    return gate * tl.sigmoid(ALPHA * gate) * (up + 1.0)


@triton.jit
def gate_up_kernel(
    x,
    words,
    scales,
    bias,
    active,
    pairs,
    logits,
    h,
    K: tl.constexpr,
    INNER: tl.constexpr,
    X_WORDS: tl.constexpr,
    H_STRIDE: tl.constexpr,
    CAPACITY: tl.constexpr,
    TOP_K: tl.constexpr,
    ALPHA: tl.constexpr,
    LIMIT: tl.constexpr,
    E: tl.constexpr,
    BE: tl.constexpr,
    IS_ONE_ROW: tl.constexpr,
    STEP: tl.constexpr,
    SIDE: tl.constexpr,
    GROUPS: tl.constexpr,
    STAGES: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Grid (INNER / 8 / SIDE / GROUPS, active experts): h[pair] = SwiGLU(gate_up(x[token])).

    x (tokens, X_WORDS) pairs of fp16 as int32; words (experts, groups, 2 * K) and scales (experts,
    groups, K / 6) int32 and bias (experts, 2 * INNER) bf16 as fragment_order.py has them; h (pairs,
    H_STRIDE) fp16; active and pairs (experts, CAPACITY) int32 as kernels/router.py has them. With
    one row the experts are those of the largest `logits` (E) float32, in their order.
    """
    group = tl.program_id(0) * (SIDE * GROUPS)
    slot = tl.program_id(1)
    if IS_DEPENDENT:  # wait first: `down` may then read the routing before its own wait
        gdc_wait()
        gdc_launch_dependents()
    word = nth_best(logits, slot, E, BE) if IS_ONE_ROW else tl.load(active + slot)
    if word >= 0:
        expert = word & 0xFFFF
        row = (expert * (INNER // 8) + group).to(tl.int64)
        lane = tl.arange(0, 128)
        within = ((lane // 4) % 4) * 4 + lane % 4
        out = tl.arange(0, 64)
        i = (group + tl.arange(0, SIDE))[:, None] * 8 + (out // 8)[None, :]
        gates = bias + expert * 2 * INNER + 2 * i
        if not IS_ONE_ROW:
            ask_for(gates)  # what is read at the end
        count = 1 if IS_ONE_ROW else word >> 16
        for first in tl.range(0, count, 8, num_stages=1):
            column = first + lane // 16
            is_in = column < count
            source = within
            if not IS_ONE_ROW:
                listed = pairs + expert * CAPACITY + column
                source += (tl.load(listed, mask=is_in, other=0) // TOP_K) * X_WORDS
            v, u = _multiply(
                words + row * (2 * K), scales + row * (K // 6), expert, x, source, is_in,
                K, STEP, SIDE, GROUPS, STAGES, False,
            )  # fmt: skip
            to = first + 2 * ((out // 2) % 4) + out % 2
            is_to = (to < count)[None, :]
            pair = tl.zeros([1, 64], tl.int32) + slot
            if not IS_ONE_ROW:
                listed = pairs + expert * CAPACITY + to[None, :]
                pair = tl.load(listed, mask=is_to, other=0)
            at = h + pair * H_STRIDE + i
            value = _swiglu(v, gates, SIDE, ALPHA, LIMIT)
            tl.store(at, value.to(tl.float16), mask=is_to)
            if GROUPS == 2:
                value = _swiglu(u, gates + 16 * SIDE, SIDE, ALPHA, LIMIT)
                tl.store(at + 8 * SIDE, value.to(tl.float16), mask=is_to)


@triton.jit
def down_kernel(
    h,
    words,
    scales,
    bias,
    active,
    pairs,
    logits,
    outputs,
    residual,
    arrivals,
    K: tl.constexpr,
    HIDDEN: tl.constexpr,
    H_WORDS: tl.constexpr,
    CAPACITY: tl.constexpr,
    TOP_K: tl.constexpr,
    E: tl.constexpr,
    BE: tl.constexpr,
    IS_ONE_ROW: tl.constexpr,
    IS_ADDED: tl.constexpr,
    STEP: tl.constexpr,
    SIDE: tl.constexpr,
    GROUPS: tl.constexpr,
    STAGES: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Grid (HIDDEN / 16 / SIDE / GROUPS, active experts): outputs[pair] = down(h[pair]) + bias.

    h (pairs, H_WORDS) pairs of fp16 as int32, bias (experts, HIDDEN) bf16, outputs (pairs, HIDDEN)
    and residual (HIDDEN) float32, arrivals int32 zeros; the rest as in gate_up. With one row the
    experts are those of the largest `logits` (E); a program's outputs are weighted
    by their softmax, and the last program of a group of rows adds all to the residual; without
    IS_ADDED it sets it. With more rows `add_norm_kernel` adds.
    """
    group = tl.program_id(0) * (SIDE * GROUPS)
    slot = tl.program_id(1)
    if IS_DEPENDENT:
        gdc_launch_dependents()
    if IS_ONE_ROW:
        word, share = nth_share(logits, slot, E, BE, TOP_K)
    else:
        word = tl.load(active + slot, cache_modifier=".cg")
    if word >= 0:
        expert = word & 0xFFFF
        row = (expert * (HIDDEN // 16) + group).to(tl.int64)
        lane = tl.arange(0, 128)
        within = ((lane // 4) % 4) * 4 + lane % 4
        r = (group + tl.arange(0, SIDE))[:, None] * 16
        r += (lane // 16 + 8 * ((lane // 2) % 2))[None, :]
        to0 = 2 * ((lane // 4) % 4) + lane % 2
        b = bias + expert * HIDDEN + r
        if not IS_ONE_ROW:
            ask_for(b)
        count = 1 if IS_ONE_ROW else word >> 16
        for first in tl.range(0, count, 8, num_stages=1):
            column = first + lane // 16
            is_in = column < count
            source = slot * H_WORDS + within
            if not IS_ONE_ROW:
                listed = pairs + expert * CAPACITY + column
                source = (
                    tl.load(listed, mask=is_in, other=0, cache_modifier=".cg") * H_WORDS + within
                )
            v, u = _multiply(
                words + row * (2 * K), scales + row * (K // 6), expert, h, source, is_in,
                K, STEP, SIDE, GROUPS, STAGES, IS_DEPENDENT,
            )  # fmt: skip
            to = first + to0
            is_to = (to < count)[None, :]
            pair = tl.zeros([1, 128], tl.int32) + slot
            if not IS_ONE_ROW:
                listed = pairs + expert * CAPACITY + to[None, :]
                pair = tl.load(listed, mask=is_to, other=0, cache_modifier=".cg")
            at = outputs + pair * HIDDEN + r
            v += tl.load(b)
            u += tl.load(b + 16 * SIDE) if GROUPS == 2 else 0.0
            if IS_ONE_ROW:
                v *= share
                u *= share
            tl.store(at, v, mask=is_to)
            if GROUPS == 2:
                tl.store(at + 16 * SIDE, u, mask=is_to)
        if IS_ONE_ROW:
            tl.debug_barrier()
            arrived = tl.atomic_add(arrivals + tl.program_id(0), 1, sem="acq_rel")
            if arrived == TOP_K - 1:
                o = group * 16 + tl.arange(0, 16 * SIDE * GROUPS)
                total = tl.zeros([16 * SIDE * GROUPS], tl.float32)
                if IS_ADDED:
                    total = tl.load(residual + o)
                for k in tl.static_range(TOP_K):
                    total += tl.load(outputs + k * HIDDEN + o, cache_modifier=".cg")
                tl.store(residual + o, total)
                tl.store(arrivals + tl.program_id(0), 0)
    else:
        if IS_DEPENDENT:
            gdc_wait()
