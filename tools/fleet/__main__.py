"""Fleets of 1 to 512 GPUs under a public trace's traffic, by what steps took on one H200.

    python -m tools.fleet conversation_trace.jsonl

trace.py says where the file is from. It takes minutes a row with 512 GPUs; the results go to
tools/benchmarks/results/fleet.json. `python -m tools.fleet.report` prints their
table. The GPUs are H200 with gpt-oss-20b; half of the trace's conversations come to each, all with
the same first 512 tokens; 15 minutes are simulated and the last ten counted; nothing fails.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tools.fleet.routers import ROUTERS
from tools.fleet.simulation import run
from tools.fleet.trace import SHA256, Line, read, traffic

RESULTS: Final = Path("tools/benchmarks/results/fleet.json")
SIZES: Final = (1, 8, 72, 512)
SHARE: Final = 0.5  # of the trace's conversations for each GPU
SWEEP: Final = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
SWEPT: Final = 8  # GPUs
SECONDS: Final = 900.0
WARM_UP_S: Final = 300.0


def main() -> None:
    """Simulate each size with each router, and write the results after each row."""
    parser = argparse.ArgumentParser(prog="python -m tools.fleet", description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--gpus", type=int, nargs="*", default=SIZES)
    parser.add_argument("--json", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    found = hashlib.sha256(arguments.trace.read_bytes()).hexdigest()
    if found != SHA256:
        raise SystemExit(f"{arguments.trace} is not the trace: its sum is {found}")
    lines = read(arguments.trace)
    cases = [(SWEPT, share) for share in SWEEP]
    cases += [(size, SHARE) for size in arguments.gpus if (size, SHARE) not in cases]
    rows: list[dict[str, Any]] = []
    for num_gpus, share in cases:
        for name in ROUTERS:
            rows.append(row(lines, num_gpus, share, name))
            print(json.dumps(rows[-1]), flush=True)
            write(arguments.json, rows)


def row(lines: Sequence[Line], num_gpus: int, share: float, router: str) -> dict[str, Any]:
    """What one fleet did."""
    requests = traffic(lines, num_gpus, share, SECONDS)
    figures = run(requests, ROUTERS[router](), num_gpus, WARM_UP_S)
    rate = len(requests) / SECONDS / num_gpus
    case = {"gpus": num_gpus, "share": share, "router": router}
    return {**case, "requests_s_gpu": round(rate, 3), **figures.as_dict()}


def write(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    trace = {"file": "kvcache-ai/Mooncake conversation_trace.jsonl", "sha256": SHA256}
    shown = {"trace": trace, "seconds": SECONDS, "warm_up_s": WARM_UP_S, "rows": rows}
    path.write_text(json.dumps(shown, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
