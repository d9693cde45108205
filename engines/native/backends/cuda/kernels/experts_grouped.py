"""The experts of many tokens: grouped products on the tensor cores, weights decoded in registers.

Reads the fragment order of the decode kernels, so one copy of the weights serves both. A tile
(`list_kernel`) is BM pairs of one expert; its tokens are gathered while loading.

Activations stand by *place* (`fragments.place`): a thread then holds, of the words it loads, just
what the tensor cores want it to hold, and decoded weights never leave their registers. Experts
whose checkpoint holds plain bf16 numbers go through the same kernels (IS_PACKED false).
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from engines.native.backends.cuda.kernels.fragments import decode_tile
from engines.native.backends.cuda.kernels.launch import dot, has_wgmma


@triton.jit
def _load_weights(
    words, scales, first, tile, K: tl.constexpr, NUM: tl.constexpr, GROUPS: tl.constexpr,
    IS_PACKED: tl.constexpr,
):  # fmt: skip
    """One tile of neighbouring groups of rows, as stored: halves of words and scales, or bf16.

    Groups from NUM on are read as the last one.
    """
    if IS_PACKED:
        group = tl.minimum(first + tl.arange(0, GROUPS), NUM - 1)[:, None]
        half = tl.arange(0, 256)[None, :]
        g = tl.arange(0, 8)[None, :]
        v = tl.load(words + group * (4 * K) + tile * 256 + half)
        s = tl.load(scales + group * (K // 6) + tile // 3 * 32 + g * 4 + tile % 3)
    else:
        row = tl.minimum(first * 16 + tl.arange(0, 16 * GROUPS), 16 * NUM - 1)[:, None]
        k = tile * 64 + tl.arange(0, 64)[None, :]
        v = tl.load(words + row * K + k)
        s = 0
    return v, s


@triton.jit
def _product(
    source, is_m, words, scales, first, K: tl.constexpr, NUM: tl.constexpr, BM: tl.constexpr,
    GROUPS: tl.constexpr, TILES: tl.constexpr, STAGES: tl.constexpr, IS_PACKED: tl.constexpr,
):  # fmt: skip
    """The groups of rows from `first` on times the activations (BM) at `source`: (BM, rows).

    A step takes TILES (1 or 3) tiles of the inputs.
    """
    at = source[:, None] + tl.arange(0, 64)[None, :]
    is_at = is_m[:, None]
    acc = tl.zeros([16 * GROUPS, BM], tl.float32)
    for step in tl.range(0, K // 64 // TILES, num_stages=STAGES):
        x0 = tl.load(at + step * TILES * 64, mask=is_at, other=0)
        w0, s0 = _load_weights(words, scales, first, step * TILES, K, NUM, GROUPS, IS_PACKED)
        if TILES == 3:
            x1 = tl.load(at + step * 192 + 64, mask=is_at, other=0)
            x2 = tl.load(at + step * 192 + 128, mask=is_at, other=0)
            w1, s1 = _load_weights(words, scales, first, step * 3 + 1, K, NUM, GROUPS, IS_PACKED)
            w2, s2 = _load_weights(words, scales, first, step * 3 + 2, K, NUM, GROUPS, IS_PACKED)
        acc = _add(w0, s0, x0, acc, GROUPS, IS_PACKED)
        if TILES == 3:
            acc = _add(w1, s1, x1, acc, GROUPS, IS_PACKED)
            acc = _add(w2, s2, x2, acc, GROUPS, IS_PACKED)
        if IS_PACKED and has_wgmma():
            # wgmma reads decoded weights from registers some time after the product is issued: a
            # use of the sum makes the compiler wait before they are decoded into again.
            acc = tl.inline_asm_elementwise("", "=f,0", [acc], tl.float32, is_pure=True, pack=1)
    return tl.trans(acc)


@triton.jit
def _add(w, s, x, acc, GROUPS: tl.constexpr, IS_PACKED: tl.constexpr):
    if IS_PACKED:
        return dot(decode_tile(w, s, GROUPS), tl.trans(x), acc)
    else:  # noqa: RET505 - Triton types what follows a return
        return dot(w, tl.trans(x), acc)


@triton.jit
def _by_place(values, BM: tl.constexpr, GROUPS: tl.constexpr):
    """Columns (BM, 8 * GROUPS), whole 32 neighbours, in the order of their places."""
    bits = tl.reshape(values, [BM, GROUPS // 4, 2, 2, 2, 2, 2])
    return tl.reshape(tl.permute(bits, [0, 1, 4, 5, 2, 3, 6]), [BM, 8 * GROUPS])


@triton.jit
def _gate_up_tile(
    x, words, scales, bias, listed, h, left, first, K: tl.constexpr, INNER: tl.constexpr,
    X_STRIDE: tl.constexpr, H_STRIDE: tl.constexpr, TOP_K: tl.constexpr, ALPHA: tl.constexpr,
    LIMIT: tl.constexpr, BM: tl.constexpr, GROUPS: tl.constexpr, TILES: tl.constexpr,
    STAGES: tl.constexpr, IS_PACKED: tl.constexpr,
):  # fmt: skip
    """The first BM of the `left` pairs that are `listed`, times the groups from `first` on."""
    m = tl.arange(0, BM)
    is_m = m < left
    pair = tl.load(listed + m, mask=is_m, other=0).to(tl.int64)
    acc = _product(
        x + (pair // TOP_K) * X_STRIDE, is_m, words, scales, first, K, INNER // 8, BM, GROUPS,
        TILES, STAGES, IS_PACKED,
    )  # fmt: skip
    halves = tl.permute(tl.reshape(acc, [BM, GROUPS, 2, 8]), [0, 1, 3, 2])
    gate, up = tl.split(halves)
    i = first * 8 + tl.arange(0, 8 * GROUPS)
    is_i = i < INNER
    b = bias + 2 * i
    gate = tl.reshape(gate, [BM, 8 * GROUPS])
    gate += tl.load(b, mask=is_i, other=0).to(tl.float32)[None, :]
    up = tl.reshape(up, [BM, 8 * GROUPS])
    up += tl.load(b + 1, mask=is_i, other=0).to(tl.float32)[None, :]
    gate = tl.minimum(gate, LIMIT)
    up = tl.minimum(tl.maximum(up, -LIMIT), LIMIT)
    out = tl.where(is_i[None, :], gate * tl.sigmoid(ALPHA * gate) * (up + 1.0), 0.0)
    at = h + pair[:, None] * H_STRIDE + i[None, :]
    placed = _by_place(out.to(h.dtype.element_ty), BM, GROUPS)
    tl.store(at, placed, mask=is_m[:, None] & (i < H_STRIDE)[None, :])


@triton.jit
def gate_up_grouped_kernel(
    x,
    words,
    scales,
    bias,
    tiles,
    counts,
    pairs,
    capacity,
    h,
    K: tl.constexpr,
    INNER: tl.constexpr,
    X_STRIDE: tl.constexpr,
    H_STRIDE: tl.constexpr,
    TOP_K: tl.constexpr,
    ALPHA: tl.constexpr,
    LIMIT: tl.constexpr,
    BM: tl.constexpr,
    TAIL: tl.constexpr,
    GROUPS: tl.constexpr,
    TILES: tl.constexpr,
    STAGES: tl.constexpr,
    IS_PACKED: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Grid (INNER / 8 / GROUPS, tiles): h[pair] = SwiGLU(gate_up(x[token])).

    x (tokens, X_STRIDE) and h (pairs, H_STRIDE) bf16, by place; words (experts, groups, 4 * K)
    int16, scales (experts, groups, K / 6) int32 and bias (experts, 2 * INNER) bf16 as
    fragment_order.py has them; tiles, counts and pairs (experts, capacity) int32 as
    kernels/router.py has them. SwiGLU as gpt-oss has it: gates cut at LIMIT, ups between -LIMIT
    and LIMIT and raised by 1. GROUPS is a multiple of 4, and what of
    h lies beyond INNER becomes zero. A tile of which at most TAIL rows are left is multiplied as
    one of TAIL, and one of at most BM / 2 as one of these.
    """
    if IS_DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    tile = tl.load(tiles + tl.program_id(1))
    if tile >= 0:
        expert = tile // 65536
        done = (tile % 65536) * BM
        left = tl.load(counts + expert) - done
        first = tl.program_id(0) * GROUPS
        row = expert.to(tl.int64) * (INNER // 8)
        EACH: tl.constexpr = 4 * K if IS_PACKED else 16 * K
        words += row * EACH
        scales += row * (K // 6)
        bias += expert * 2 * INNER
        listed = pairs + expert * capacity + done
        HALF: tl.constexpr = BM // 2 if TAIL > 0 and BM > 2 * TAIL else 0
        if TAIL > 0 and left <= TAIL:
            _gate_up_tile(
                x, words, scales, bias, listed, h, left, first, K, INNER, X_STRIDE, H_STRIDE,
                TOP_K, ALPHA, LIMIT, TAIL, GROUPS, TILES, STAGES, IS_PACKED,
            )  # fmt: skip
        elif HALF > 0 and left <= HALF:
            _gate_up_tile(
                x, words, scales, bias, listed, h, left, first, K, INNER, X_STRIDE, H_STRIDE,
                TOP_K, ALPHA, LIMIT, HALF, GROUPS, TILES, STAGES, IS_PACKED,
            )  # fmt: skip
        else:
            _gate_up_tile(
                x, words, scales, bias, listed, h, left, first, K, INNER, X_STRIDE, H_STRIDE,
                TOP_K, ALPHA, LIMIT, BM, GROUPS, TILES, STAGES, IS_PACKED,
            )  # fmt: skip


@triton.jit
def _down_tile(
    h, words, scales, bias, listed, outputs, left, first, K: tl.constexpr, HIDDEN: tl.constexpr,
    H_STRIDE: tl.constexpr, BM: tl.constexpr, GROUPS: tl.constexpr, TILES: tl.constexpr,
    STAGES: tl.constexpr, IS_PACKED: tl.constexpr,
):  # fmt: skip
    """The first BM of the `left` pairs that are `listed`, times the groups from `first` on."""
    m = tl.arange(0, BM)
    is_m = m < left
    pair = tl.load(listed + m, mask=is_m, other=0).to(tl.int64)
    acc = _product(
        h + pair * H_STRIDE, is_m, words, scales, first, K, HIDDEN // 16, BM, GROUPS, TILES,
        STAGES, IS_PACKED,
    )  # fmt: skip
    r = first * 16 + tl.arange(0, 16 * GROUPS)
    is_r = r < HIDDEN
    acc += tl.load(bias + r, mask=is_r, other=0).to(tl.float32)[None, :]
    at = outputs + pair[:, None] * HIDDEN + r[None, :]
    tl.store(at, acc.to(outputs.dtype.element_ty), mask=is_m[:, None] & is_r[None, :])


@triton.jit
def down_grouped_kernel(
    h,
    words,
    scales,
    bias,
    tiles,
    counts,
    pairs,
    capacity,
    outputs,
    K: tl.constexpr,
    HIDDEN: tl.constexpr,
    H_STRIDE: tl.constexpr,
    BM: tl.constexpr,
    TAIL: tl.constexpr,
    GROUPS: tl.constexpr,
    TILES: tl.constexpr,
    STAGES: tl.constexpr,
    IS_PACKED: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Grid (HIDDEN / 16 / GROUPS, tiles): outputs[pair] = down(h[pair]) + bias; h by place.

    outputs (pairs, HIDDEN) bf16 or float32; the rest and TAIL as in gate_up.
    """
    if IS_DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    tile = tl.load(tiles + tl.program_id(1))
    if tile >= 0:
        expert = tile // 65536
        done = (tile % 65536) * BM
        left = tl.load(counts + expert) - done
        first = tl.program_id(0) * GROUPS
        row = expert.to(tl.int64) * (HIDDEN // 16)
        EACH: tl.constexpr = 4 * K if IS_PACKED else 16 * K
        words += row * EACH
        scales += row * (K // 6)
        bias += expert * HIDDEN
        listed = pairs + expert * capacity + done
        HALF: tl.constexpr = BM // 2 if TAIL > 0 and BM > 2 * TAIL else 0
        if TAIL > 0 and left <= TAIL:
            _down_tile(
                h, words, scales, bias, listed, outputs, left, first, K, HIDDEN, H_STRIDE, TAIL,
                GROUPS, TILES, STAGES, IS_PACKED,
            )  # fmt: skip
        elif HALF > 0 and left <= HALF:
            _down_tile(
                h, words, scales, bias, listed, outputs, left, first, K, HIDDEN, H_STRIDE, HALF,
                GROUPS, TILES, STAGES, IS_PACKED,
            )  # fmt: skip
        else:
            _down_tile(
                h, words, scales, bias, listed, outputs, left, first, K, HIDDEN, H_STRIDE, BM,
                GROUPS, TILES, STAGES, IS_PACKED,
            )  # fmt: skip
