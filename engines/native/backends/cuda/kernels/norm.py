"""The residual stream between the products: embedding rows, and RMSNorm after an addition."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from engines.native.backends.cuda.kernels.fragments import place


@triton.jit
def embed_kernel(
    slots, token_ids, table, x, H: tl.constexpr, BLOCK: tl.constexpr, IS_DEPENDENT: tl.constexpr
):
    """Grid (rows): x[row] = table[token_ids[slots[row]]]; token 0 for one below 0.

    slots (rows) and token_ids (slots) int32, table (vocabulary, H) bf16, x (rows, H) float32.
    """
    row = tl.program_id(0)
    if IS_DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    k = tl.arange(0, BLOCK)
    token = tl.maximum(tl.load(token_ids + tl.load(slots + row)), 0).to(tl.int64)
    value = tl.load(table + token * H + k, mask=k < H, other=0)
    tl.store(x + row * H + k, value.to(tl.float32), mask=k < H)


@triton.jit
def embed_chunk_kernel(
    token_ids, slots, latest, table, x, H: tl.constexpr, BLOCK: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Grid (rows): x[row] = table[token_ids[row]]; below 0, of the row's slot in `latest`.

    token_ids, slots (rows; -1: padding, which gets token 0) and latest (slots) int32; table
    (vocabulary, H) bf16, x (rows, H) float32.
    """
    row = tl.program_id(0).to(tl.int64)
    if IS_DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    k = tl.arange(0, BLOCK)
    token = tl.load(token_ids + row)
    if token < 0:
        token = tl.load(latest + tl.maximum(tl.load(slots + row), 0))
    at = table + tl.maximum(token, 0).to(tl.int64) * H + k
    tl.store(x + row * H + k, tl.load(at, mask=k < H, other=0).to(tl.float32), mask=k < H)


@triton.jit
def add_norm_kernel(
    x,
    outputs,
    weights,
    gain,
    normed,
    placed,
    H: tl.constexpr,
    STRIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    EPS: tl.constexpr,
    TOP_K: tl.constexpr,
    IS_WEIGHTED: tl.constexpr,
    IS_PLACED: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Grid (rows): x[row] += sum of weights[pair] * outputs[pair]; normed = rms_norm(x)
    * gain.

    x (rows, H) and weights (pairs) float32, outputs (pairs, H) and `normed` (rows, STRIDE) of any
    float type, gain (H) bf16. The pairs of a row are TOP_K * row and on, added in this order;
    TOP_K 0 adds nothing, without IS_WEIGHTED all weights are 1. RMSNorm: Zhang and Sennrich 2019,
    arXiv 1910.07467.
    IS_PLACED: `placed` gets the same, its columns by `fragments.place`.
    """
    row = tl.program_id(0).to(tl.int64)
    if IS_DEPENDENT:
        gdc_launch_dependents()
    k = tl.arange(0, BLOCK)
    is_k = k < H
    g = tl.load(gain + k, mask=is_k, other=0).to(tl.float32)
    if IS_DEPENDENT:
        gdc_wait()
    v = tl.load(x + row * H + k, mask=is_k, other=0)
    if TOP_K > 0:
        for rank in tl.static_range(TOP_K):
            pair = row * TOP_K + rank
            part = tl.load(outputs + pair * H + k, mask=is_k, other=0).to(tl.float32)
            v += tl.load(weights + pair) * part if IS_WEIGHTED else part
        tl.store(x + row * H + k, v, mask=is_k)
    out = v * tl.rsqrt(tl.sum(v * v) / H + EPS) * g
    tl.store(normed + row * STRIDE + k, out.to(normed.dtype.element_ty), mask=is_k)
    if IS_PLACED:
        tl.store(placed + row * STRIDE + place(k), out.to(placed.dtype.element_ty), mask=is_k)
