"""Attention of decoding rows in a chunk of prompts: one token each, to all that its sequence has.

A context is read in parts, by several programs; the last one to finish combines them in order. The
host lists the parts (steps/row_parts.py), so one captured graph serves any rows.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from engines.native.backends.cuda.kernels.prefill_attention import walk


@triton.jit
def row_attention_kernel(
    q,
    cache,
    tables,
    sinks,
    parts,
    num_parts,
    part_out,
    part_max,
    part_sum,
    arrivals,
    out,
    TABLE_STRIDE: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
    BT: tl.constexpr,
    STAGES: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Grid (kv_heads, programs): the parts in turn, `num_parts` (1) of them.

    q, out, sinks, cache and tables as prefill_attention_kernel has them. `parts` (parts, 6) int32:
    the row of `tables`, the token's row in the chunk, its first key (a multiple of BT), the one
    after its last, the token's first part and how many parts it has. part_out (parts, kv_heads, 16,
    d), part_max and part_sum (parts, kv_heads, 16) float32; arrivals (parts, kv_heads) int32, zero,
    also afterwards. Splits of the context: Flash-Decoding, Dao et al. 2023.
    """
    head = tl.program_id(0)
    if IS_DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    i = tl.arange(0, 16)  # query heads of the group, padded to what the tensor cores take
    dv = tl.arange(0, D)
    is_i = i < GROUP
    for number in tl.range(tl.program_id(1), tl.load(num_parts), tl.num_programs(1), num_stages=1):
        part = parts + number * 6
        table = tables + tl.load(part).to(tl.int64) * TABLE_STRIDE
        row = tl.load(part + 1).to(tl.int64)
        start = tl.load(part + 2)
        end = tl.load(part + 3)
        first = tl.load(part + 4)
        num = tl.load(part + 5)
        at = row * (KV_HEADS * GROUP * D) + (head * GROUP + i)[:, None] * D + dv[None, :]
        query = tl.load(q + at, mask=is_i[:, None], other=0)
        sink = tl.load(sinks + head * GROUP + i, mask=is_i, other=0).to(tl.float32)
        is_first = number == first
        peak = tl.where(is_first, sink * 1.4426950408889634, -1e30)
        total = tl.where(is_first & (i >= 0), 1.0, 0.0)
        acc = tl.zeros([16, D], tl.float32)
        whole = start + (end - start) // BT * BT
        position = end - 1 + 0 * i
        SLOT: tl.constexpr = 2 * KV_HEADS * D
        peak, total, acc = walk(
            query, position, peak, total, acc, cache + head * D, table, start, whole,
            KV_HEADS * D, SLOT, BLOCK, 0, BT, STAGES, IS_MASKED=False,
        )  # fmt: skip
        peak, total, acc = walk(
            query, position, peak, total, acc, cache + head * D, table, whole, end,
            KV_HEADS * D, SLOT, BLOCK, 0, BT, STAGES, IS_MASKED=True,
        )  # fmt: skip
        if num == 1:
            value = (acc / total[:, None]).to(out.dtype.element_ty)
            tl.store(out + at, value, mask=is_i[:, None])
        else:
            its = (number * KV_HEADS + head) * 16 + i
            tl.store(part_out + its[:, None] * D + dv[None, :], acc)
            tl.store(part_max + its, peak)
            tl.store(part_sum + its, total)
            tl.debug_barrier()
            arrival = arrivals + first * KV_HEADS + head
            if tl.atomic_add(arrival, 1, sem="acq_rel") == num - 1:
                peak = tl.full([16], -1e30, tl.float32)
                total = tl.zeros([16], tl.float32)
                acc = tl.zeros([16, D], tl.float32)
                for each in tl.range(first, first + num, num_stages=1):
                    its = (each * KV_HEADS + head) * 16 + i
                    its_peak = tl.load(part_max + its, cache_modifier=".cg")
                    its_total = tl.load(part_sum + its, cache_modifier=".cg")
                    its_out = tl.load(
                        part_out + its[:, None] * D + dv[None, :], cache_modifier=".cg"
                    )
                    new_peak = tl.maximum(peak, its_peak)
                    mine = tl.exp2(peak - new_peak)
                    its_share = tl.exp2(its_peak - new_peak)
                    acc = acc * mine[:, None] + its_out * its_share[:, None]
                    total = total * mine + its_total * its_share
                    peak = new_peak
                value = (acc / total[:, None]).to(out.dtype.element_ty)
                tl.store(out + at, value, mask=is_i[:, None])
                tl.store(arrival, 0)
