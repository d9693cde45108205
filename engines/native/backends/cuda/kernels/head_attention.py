"""Attention of an EAGLE3 head's drafts over its paged K/V, which are all written before.

The cache is (slots, 2, kv_heads, head_dim), as kernels/attention.py has it. A long context is split
over programs (Flash-Decoding, Dao et al. 2023); `combined` puts the parts together.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from engines.native.backends.cuda.kernels.launch import dot

PADDED_GROUP = 16  # query heads of a K/V head, padded to what the tensor cores take


@triton.jit
def head_attention_kernel(
    q,
    cache,
    tables,
    slots,
    positions,
    part_out,
    part_lse,
    TABLE_STRIDE: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLITS: tl.constexpr,
    MIN_SPLIT: tl.constexpr,
    BT: tl.constexpr,
    SCALE: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Grid (kv_heads, SPLITS, rows): a row sees positions 1 to its own; position 0 has no K/V.

    q (rows, heads, D) rotated; slots and positions (rows) int64; part_out (rows, kv_heads, SPLITS,
    PADDED_GROUP, D) and part_lse (rows, kv_heads, SPLITS, PADDED_GROUP) float32.
    """
    head = tl.program_id(0)
    split = tl.program_id(1)
    row = tl.program_id(2)
    if IS_DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    SLOT: tl.constexpr = 2 * KV_HEADS * D
    i = tl.arange(0, 16)
    d = tl.arange(0, D)
    position = tl.load(positions + row).to(tl.int32)
    share = tl.maximum(tl.cdiv(tl.cdiv(position, SPLITS), BT) * BT, MIN_SPLIT)
    first = 1 + split * share
    end = tl.minimum(first + share, position + 1)
    query = q + (row * KV_HEADS + head) * GROUP * D + i[:, None] * D + d[None, :]
    query = tl.load(query, mask=(i < GROUP)[:, None], other=0).to(cache.dtype.element_ty)
    table = tables + tl.load(slots + row) * TABLE_STRIDE
    peak = tl.full([16], -1e30, tl.float32)
    total = tl.zeros([16], tl.float32)
    acc = tl.zeros([16, D], tl.float32)
    for t0 in tl.range(first, end, BT, num_stages=2):
        t = t0 + tl.arange(0, BT)
        is_t = t < end
        block = tl.load(table + t // BLOCK, mask=is_t, other=0).to(tl.int64)
        at = cache + (block * BLOCK + t % BLOCK) * SLOT + head * D
        k = tl.load(at[None, :] + d[:, None], mask=is_t[None, :], other=0)
        v = tl.load(at[:, None] + KV_HEADS * D + d[None, :], mask=is_t[:, None], other=0)
        score = dot(query, k, tl.zeros([16, BT], tl.float32)) * SCALE
        score = tl.where(is_t[None, :], score, -1e30)
        new_peak = tl.maximum(peak, tl.max(score, 1))
        weight = tl.exp(score - new_peak[:, None])
        shrink = tl.exp(peak - new_peak)
        acc = dot(weight.to(v.dtype), v, acc * shrink[:, None])
        total = total * shrink + tl.sum(weight, 1)
        peak = new_peak
    part = ((row * KV_HEADS + head) * SPLITS + split) * 16 + i
    is_some = total > 0
    total = tl.where(is_some, total, 1.0)
    tl.store(part_out + part[:, None] * D + d[None, :], acc / total[:, None])
    tl.store(part_lse + part, tl.where(is_some, peak + tl.log(total), -1e30))


def combined(part_out: Tensor, part_lse: Tensor, group: int) -> Tensor:
    """The parts of all splits together: (rows, kv_heads * group * D) float32."""
    weights = part_lse.softmax(2).unsqueeze(-1)
    return (part_out * weights).sum(2)[:, :, :group].flatten(1)
