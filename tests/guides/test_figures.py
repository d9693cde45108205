"""The README's figures of serving loads are those of the results file."""

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()

LOADS: dict[str, Any] = json.loads(
    (ROOT / "tools/benchmarks/results/gpu-serving-20b-h200.json").read_text()
)["loads"]


def _row(name: str) -> dict[str, Any]:
    row: dict[str, Any] = LOADS[name]["rows"][0]
    return row


def _ttft(name: str, group: str) -> str:
    times = _row(name)["groups"][group]["ttft_ms"]
    return f"{times['p50']:,.0f} / {times['p99']:,.0f} ms"


def test_the_table_of_loads_is_what_was_measured() -> None:
    for load in ("agents24", "agents64"):
        ours, peer = (_row(f"{server}-{load}")["seconds"] for server in ("default", "peer"))
        assert f"| {ours:.1f} s | {peer:.1f} s |" in README
    later = (_ttft(f"{server}-agents24", "later turns") for server in ("default", "peer"))
    assert f"| {' | '.join(later)} |" in README
    ours, peer = (_ttft(f"{server}-poisson40", "all") for server in ("default", "peer"))
    assert f"| {ours} | {peer} (another H200) |" in README
