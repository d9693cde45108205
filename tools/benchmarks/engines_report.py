"""The table of a comparison of engines, with the physical limit beside each load."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from tools.benchmarks.engines_load import Load, Reading
from tools.benchmarks.limits import Machine, ModelBytes
from tools.benchmarks.report import median


@dataclass(frozen=True, slots=True)
class Found:
    """What was found of one engine: a list of readings for each load."""

    label: str
    version: str
    ready_s: float
    readings: dict[str, list[Reading]] = field(default_factory=dict)

    def rate(self, load: str) -> float:
        """The median of its tokens a second."""
        return median([reading.rate for reading in self.readings[load]])

    def cpu_s(self, load: str) -> float:
        """The median of its CPU seconds of a run."""
        return median([reading.cpu_s for reading in self.readings[load]])


def show(
    title: str,
    found: list[Found],
    loads: Mapping[str, Load],
    machine: Machine,
    shape: ModelBytes,
) -> None:
    """Print the table, tokens a second each, and the JSON line; ratios are to the first engine."""
    first, *others = found
    limits = {name: limit_of(load, machine, shape) for name, load in loads.items()}
    rows = [[title, *(f"{each.label} {each.version}" for each in found), "limit"]]
    rows[0] += [f"{first.label} / {other.label}" for other in others]
    for name in loads:
        row = [name, *(_shown(each.rate(name)) for each in found), _shown(limits[name])]
        row += [_ratio(first, other, name) for other in others]
        rows.append(row)
    rows.append(["ready after, s", *(f"{each.ready_s:.1f}" for each in found)])
    widths = [max(map(len, column)) for column in zip(*(r + [""] * 9 for r in rows), strict=False)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)))
    print(json.dumps(_document(title, found, machine, limits)))


def limit_of(load: Load, machine: Machine, shape: ModelBytes) -> float:
    """Tokens a second that no engine of this dtype can pass; K/V are left out."""
    width = load.num_prompt if load.is_prefill else 1
    num_rows = load.num_streams  # of logits: one a sequence
    flops = num_rows * (width * shape.token_flops() + shape.logits_flops())
    return num_rows * width / machine.seconds(shape.step_bytes(num_rows * width), flops)


def _shown(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}"


def _ratio(first: Found, other: Found, load: str) -> str:
    """Of the rates, and of the CPU time, which other processes disturb less."""
    rates, cpu = first.rate(load) / other.rate(load), other.cpu_s(load) / first.cpu_s(load)
    return f"{rates:.2f}x (CPU {cpu:.2f}x)"


def _document(
    title: str, found: list[Found], machine: Machine, limits: Mapping[str, float]
) -> dict[str, Any]:
    return {
        "case": title,
        "machine": _processor(),
        "cpus": os.cpu_count(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        **asdict(machine),
        "limits": limits,
        "engines": [asdict(each) for each in found],
    }


def _processor() -> str:
    """The name of the CPU, where Linux says it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
