"""Variants of a decode step's attention behind long contexts, on this machine's GPU.

    python -m tools.benchmarks.gpu_attention [--cases 32x16384 64x16384 ...] [--json FILE]

gpt-oss-20b with random weights. Each variant of a bucket is timed behind a long context and behind
128 tokens, where it must not be slower; the fastest is named last. The share of the bandwidth is
that of the K/V alone, by what the context adds to a step.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, Final

import torch

from engines.native.backends.cuda.choices.variants import Choices
from tools.benchmarks.gpu import Bench, load, pairs

_CASES: Final = ("1x60000", "8x20000", "24x22000", "32x16384", "64x16384", "128x8192")
_SHORT: Final = 128
_STEPS: Final = 16
_MOST_SPLITS: Final = 16  # of a context, for up to 128 rows: what scratch has room for
_HARDLY_SLOWER: Final = 1.005


def variants(base: Choices) -> dict[str, Choices]:
    """The one that runs, and others by tile, warps, stages and splits of the context."""
    found = {"base": base}
    for tile, warps, stages, factor in product((32, 64, 128), (1, 2, 4), (3, 5), (1, 2)):
        splits = base.splits * factor
        if tile * stages <= 400 and splits <= _MOST_SPLITS:
            found[f"tile {tile} warps {warps} stages {stages} splits {splits}"] = replace(
                base,
                context_tile=tile,
                attention_warps=warps,
                attention_stages=stages,
                splits=splits,
            )
    return found


def measure(bench: Bench, rows: int, context: int) -> dict[str, Any]:
    config, times = bench.shape.config, {}
    for name, choices in variants(bench.choices.decode(rows)).items():
        try:
            deep, short = (
                bench.decode(rows, at, _STEPS, choices)["ms"] for at in (context, _SHORT)
            )
        except Exception as error:  # a variant that does not fit is a result
            print(f"{rows}x{context} {name}: {error}", flush=True)
            continue
        finally:
            torch.cuda.empty_cache()
        times[name] = {"ms": deep, "ms_at_128": short}
        print(f"{rows}x{context} {name}: {deep} ms, {short} ms behind {_SHORT}", flush=True)
    most = _HARDLY_SLOWER * times["base"]["ms_at_128"]
    best = min((n for n in times if times[n]["ms_at_128"] <= most), key=lambda n: times[n]["ms"])
    layers = config.layer_types.count("full_attention")
    kv_bytes = rows * (context - _SHORT) * layers * 4 * config.kv_size
    for each in times.values():
        added_s = max(each["ms"] - each["ms_at_128"], 1e-3) / 1e3
        each["share_of_bandwidth"] = round(kv_bytes / added_s / bench.bandwidth, 3)
    return {"rows": rows, "context": context, "best": best, "variants": times}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=pairs, nargs="+", default=[pairs(case) for case in _CASES])
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    longest = max(context for _, context in given.cases)
    bench = load("20b", num_positions=longest + 1000)
    line: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "cases": []}
    for rows, context in given.cases:
        line["cases"].append(measure(bench, rows, context))
        print(f"best of {rows} rows: {line['cases'][-1]['best']}", flush=True)
        if given.json:
            given.json.write_text(json.dumps(line, indent=1) + "\n")


if __name__ == "__main__":
    main()
