"""The README's figures of loads, and of vLLM beside them, are those of the results file."""

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
RESULTS: dict[str, Any] = json.loads(
    (ROOT / "tools/benchmarks/results/gpu-user-loads-20b-h200.json").read_text()
)
SIDES = ("ours", "vllm")


def _row(server: str, load: str) -> dict[str, Any]:
    return next(r for r in RESULTS["rows"] if (r["server"], r["load"]) == (server, load))


def _ttft(server: str, load: str, group: str) -> str:
    times = _row(server, load)["groups"][group]["ttft_ms"]
    return f"{times['p50']:,.0f} / {times['p99']:,.0f} ms"


def _tokens_per_s(server: str, streams: int) -> str:
    row = _row(server, f"streams={streams},rounds=1,answer=512")
    return f"{1e3 * streams / row['groups']['all']['ms_per_token']['p50']:,.0f}"


def test_the_first_table_is_what_was_measured() -> None:
    ours, peer = (_tokens_per_s(server, 128) for server in SIDES)
    assert f"| 128 streams | {ours} tokens/s | {peer} tokens/s |" in README
    ours, peer = (
        f"{_row(server, 'agents=24')['groups']['later turns']['ms_per_token']['p50']:.1f} ms"
        for server in SIDES
    )
    assert f"| the same, time per token of later turns, p50 | {ours} | {peer} |" in README
    ready = [next(iter(RESULTS[server]["ready_s"].values())) for server in SIDES]
    assert f" | {ready[0]:.0f} s | {ready[1]:.0f} s |" in README


def test_the_table_of_streams_is_what_was_measured() -> None:
    every = " | ".join(_tokens_per_s("ours", streams) for streams in (1, 8, 32, 128))
    assert f"| gpt-oss-20b, H200, over HTTP in November 2026 | {every} |" in README


def test_the_table_of_loads_is_what_was_measured() -> None:
    ours, peer = (_row(server, "agents=24")["seconds"] for server in SIDES)
    assert README.count(f"| {ours:.1f} s | {peer:.1f} s |") == 2
    later = (_ttft(server, "agents=24", "later turns") for server in SIDES)
    assert f"| {' | '.join(later)} (stalls) |" in README
    arriving = (_ttft(server, "poisson=40", "all") for server in SIDES)
    assert f"| {' | '.join(arriving)} (stalls, two runs) |" in README
    bulk = f"{_row('ours', 'bulk')['seconds']:.1f} s; {_ttft('ours', 'bulk', 'chat')}"
    assert f"| {bulk} | not run |" in README
    long = [_row("ours", f"long={n}000")["groups"]["new"]["ttft_ms"]["p50"] for n in (32, 120)]
    assert f"| {long[0] / 1e3:.1f} / {long[1] / 1e3:.1f} s | not run |" in README
