"""Which variants of the experts' products are the fastest, by rows of a step.

    python -m tools.benchmarks.gpu_experts [--model 20b|120b] [--rows N ...] [--json FILE]

Random weights. For each number of rows the router and the experts of all layers are timed with the
variants that the table has for each of its sizes, in turn, three times; then whole steps with the
variants by rows of the step and with those that the engine takes, in turn.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch

from engines.native.backends.cuda.choices.of_card import CardChoices
from engines.native.backends.cuda.choices.variants import Choices, StreamLaunch
from engines.native.backends.cuda.measuring import MeasuredSteps
from tools.benchmarks.gpu import Bench, load

_EXPERTS: Final = frozenset({"router", "gate_up", "down"})
_ROUNDS: Final = 3
_BLOCK: Final = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=["20b", "120b"], default="120b")
    parser.add_argument("--rows", type=int, nargs="*", default=[8, 16, 32, 64, 128, 256, 512])
    parser.add_argument("--steps", action="store_true", help="whole steps alone")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with torch.inference_mode():
        bench = load(arguments.model, num_positions=9000)
        line: dict[str, Any] = {
            "gpu": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "model": arguments.model,
            "bandwidth_tb_per_s": round(bench.bandwidth / 1e12, 3),
            "unit": "us a layer of router and experts, by the table's size; ms of a step",
            "experts": {},
            "steps": {},
        }
        for rows in arguments.rows:
            line["steps"][rows] = steps_of(bench, rows)
            print("step", rows, json.dumps(line["steps"][rows]), flush=True)
            torch.cuda.empty_cache()
        steps = MeasuredSteps(bench.shape, bench.weights, _BLOCK)
        for rows in () if arguments.steps else arguments.rows:
            line["experts"][rows] = experts_of(bench, steps, rows)
            print("experts", rows, json.dumps(line["experts"][rows]), flush=True)
            torch.cuda.empty_cache()
    print(json.dumps(line))
    if arguments.json:
        arguments.json.write_text(json.dumps(line, indent=1) + "\n")


def steps_of(bench: Bench, rows: int) -> dict[str, Any]:
    """Milliseconds of whole steps."""
    config, own = bench.shape.config, bench.choices
    by_rows = replace(own.table, density=config.num_experts_per_tok / config.num_local_experts)
    sides = {
        "by_rows": CardChoices(own.card, by_rows).decode(rows, config),
        "by_rows_of_an_expert": own.decode(rows, config),
    }
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
    for _ in range(_ROUNDS):
        for name, choices in sides.items():
            found[name].append(bench.decode(rows, 256, 64, choices))
    return {
        name: {
            "ms": [run["ms"] for run in runs],
            "share_of_floor": statistics.median(run["share_of_floor"] for run in runs),
            "is_finite": all(run["is_finite"] for run in runs),
        }
        for name, runs in found.items()
    }


def experts_of(bench: Bench, steps: MeasuredSteps, rows: int) -> dict[str, Any]:
    """Microseconds a layer, with the experts' variants of every size of the table."""
    config, num = bench.shape.config, bench.shape.config.num_hidden_layers
    own = bench.choices.decode(rows, config)
    sides: dict[int, Choices] = {}
    for size, each in bench.choices.table.decode.items():
        if 1 < size <= 1024 and not (size == 8 and rows > 128):
            early = own.early - {"gate_up"} if isinstance(each.gate_up, StreamLaunch) else own.early
            sides[size] = replace(own, gate_up=each.gate_up, down=each.down, early=early)
    found: dict[int, list[float]] = {size: [] for size in sides}
    for _ in range(_ROUNDS):
        for size, choices in sides.items():
            ms = steps.time(rows, choices, _EXPERTS)
            if ms is not None:
                found[size].append(round(ms / num * 1e3, 1))
    return {"us_by_size": found}


if __name__ == "__main__":
    main()
