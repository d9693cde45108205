"""Attention of a chunk's decoding rows on this machine's GPU: K/V of one layer of gpt-oss-20b.

    python -m tools.benchmarks.gpu_row_attention [--cases 24x22016 64x16384 ...]

Microseconds and TB/s of K/V, by programs of a multiprocessor and the least keys of a part.
"""

from __future__ import annotations

import argparse
import json
from typing import Any, Final

import torch

from engines.native.backends.cuda.card import Card
from engines.native.backends.cuda.kernels import row_attention
from engines.native.backends.cuda.kernels.launch import launch
from engines.native.backends.cuda.memory.part_sums import PartSums
from engines.native.backends.cuda.offline.published import gpt_oss
from engines.native.backends.cuda.steps.row_parts import DecodingRow, parts_of
from tools.benchmarks.gpu import pairs

_CASES: Final = ("24x22016", "64x16384", "8x20032", "64x25024", "32x448", "1x60032")
_VARIANTS: Final = ((4, 512), (6, 512), (8, 512), (12, 512), (6, 256), (6, 1024), (12, 1024))
_BLOCK: Final = 64
_TIMES: Final = 20  # launches of a graph


def measure(rows: int, context: int) -> dict[str, dict[str, float]]:
    """Of every variant: these rows, each behind a context of this length."""
    device, config = torch.device("cuda"), gpt_oss("20b")
    num_each = context // _BLOCK + 1
    bf16: dict[str, Any] = {"dtype": torch.bfloat16, "device": device}
    cache = torch.randn(rows * num_each + 1, _BLOCK * 2 * config.kv_size, **bf16)
    order = torch.randperm(rows * num_each, device=device) + 1
    tables = order.view(rows, num_each).int()
    q = torch.randn(rows, config.q_size, **bf16)
    sinks, out = torch.randn(config.num_attention_heads, **bf16), torch.empty_like(q)
    sums, heads = PartSums(config, rows, device), config.num_key_value_heads
    found = {}
    for programs, least in _VARIANTS:
        parts = parts_of([DecodingRow(i, i, context - 1) for i in range(rows)], least).to(device)
        num = torch.tensor([len(parts)], dtype=torch.int32, device=device)
        grid = heads, max(programs * Card.of(device).num_sms // heads, 1)
        seconds = _seconds(
            grid, q, cache, tables, sinks, parts, num, sums.out, sums.peak, sums.total,
            sums.arrivals, out, TABLE_STRIDE=num_each, KV_HEADS=heads,
            GROUP=config.num_attention_heads // heads, D=config.head_dim, BLOCK=_BLOCK, BT=64,
            STAGES=3, num_warps=2,
        )  # fmt: skip
        speed = rows * context * 4 * config.kv_size / seconds
        found[f"{programs}, {least}"] = {
            "us": round(seconds * 1e6, 1), "tb_per_s": round(speed / 1e12, 2),
        }  # fmt: skip
    return found


def _seconds(grid: tuple[int, int], *args: Any, **options: Any) -> float:
    def start() -> None:
        launch(row_attention.row_attention_kernel, grid, *args, **options)

    start()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(_TIMES):
            start()
    graph.replay()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / _TIMES


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=pairs, nargs="+", default=[pairs(case) for case in _CASES])
    for rows, context in parser.parse_args().cases:
        print(f"{rows}x{context}", json.dumps(measure(rows, context)), flush=True)


if __name__ == "__main__":
    main()
