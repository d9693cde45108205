"""Where a decode step's time goes on this machine's GPU, from the engine's own captured graphs.

    python -m tools.benchmarks.gpu_step [--model 20b|120b] [--rows 1 8 32 128] [--json FILE]

Random MXFP4 weights of the true shape. The engine decodes so many rows while CUPTI notes its
kernels; each part stands beside its floor: the bytes that it must read over the read bandwidth of
this card, experts as uniform routing hits them. `ms` is a step's time without the tracer.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any, Final

import torch
from torch.profiler import ProfilerActivity, profile

from engines.base import EngineRequest, SamplingParams
from engines.native.loop.core import EngineCore
from tools.benchmarks.gpu import Bench, load
from tools.benchmarks.gpu_engine import Load, core_of
from tools.benchmarks.step_parts import PARTS, Kernel, parts_us

PROMPT: Final = 128
_SETTLE: Final = 16  # steps
_TIMED: Final = 192
_TRACED: Final = 48


def of_rows(bench: Bench, rows: int) -> dict[str, Any]:
    """A step of so many rows, by part."""
    config = bench.shape.config
    of_load = Load(rows, PROMPT, _SETTLE + _TIMED + _TRACED + 64, rows)
    cache = bench.cache(of_load.num_blocks(bench.block_size, config.sliding_window))
    core = core_of(config, bench.weights, cache, bench.block_size, of_load)
    begun(core, rows, of_load.answer, config.vocab_size)
    times_ms = []
    for _ in range(_TIMED):
        began_s = time.perf_counter()
        core.advance()
        times_ms.append(1e3 * (time.perf_counter() - began_s))
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as traced:
        for _ in range(_TRACED):
            core.advance()
        torch.cuda.synchronize()
    core.abandon()
    found = parts_us(
        Kernel(event.name, event.time_range.start, event.time_range.end)
        for event in traced.events() or ()
        if event.device_type.name == "CUDA"
    )
    context = PROMPT + _SETTLE + _TIMED + _TRACED // 2
    floors, whole_us = bench.floors_us(rows, context), sum(found.values())
    ms = statistics.median(times_ms)
    return {
        "rows": rows,
        "context": context,
        "ms": round(ms, 4),
        "tokens_per_s": round(rows / ms * 1e3),
        "traced_ms": round(whole_us / 1e3, 4),
        "floor_ms": round(sum(floors.values()) / 1e3, 4),
        "parts": {
            part: {
                "us": round(found[part], 1),
                "share": round(found[part] / whole_us, 3),
                "floor_us": round(floors[part], 1) if part in floors else None,
            }
            for part in PARTS
        },
    }


def begun(core: EngineCore, rows: int, num_tokens: int, vocab_size: int) -> None:
    """Have that many sequences decode."""
    generator = torch.Generator().manual_seed(rows)
    for number in range(rows):
        ids = torch.randint(0, vocab_size - 1000, (PROMPT,), generator=generator).tolist()
        params = SamplingParams(num_tokens, temperature=1.0, seed=number)
        core.scheduler.add(EngineRequest(str(number), tuple(ids), params))
    while core.stats().generated_tokens < _SETTLE * rows:
        core.advance()


def table(found: dict[str, Any]) -> str:
    """The parts of one number of rows, the largest loss first."""
    lines = [
        f"{found['rows']} rows: {found['ms']} ms ({found['tokens_per_s']} tok/s), traced "
        f"{found['traced_ms']}, floor {found['floor_ms']}"
    ]
    parts = found["parts"].items()
    for part, each in sorted(parts, key=lambda item: (item[1]["floor_us"] or 0) - item[1]["us"]):
        floor, spent = each["floor_us"], max(each["us"], 0.1)
        lines.append(
            f"  {part:16}{each['us']:9.1f} us {each['share']:6.1%}   floor "
            + ("-" if floor is None else f"{floor:.1f} ({floor / spent:.0%})")
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=["20b", "120b"], default="20b")
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 8, 32, 128])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    bench = load(arguments.model, num_positions=9000)
    line: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "model": arguments.model,
        "bandwidth_tb_per_s": round(bench.bandwidth / 1e12, 3),
        "steps": [],
    }
    for rows in arguments.rows:
        with torch.inference_mode():
            line["steps"].append(found := of_rows(bench, rows))
        print(table(found), flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps(line, indent=1) + "\n")
        torch.cuda.empty_cache()
    print(json.dumps(line))


if __name__ == "__main__":
    main()
