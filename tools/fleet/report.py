"""Print what was simulated: `python -m tools.fleet.report`."""

from __future__ import annotations

import json
from typing import Any, Final

from tools.fleet.__main__ import RESULTS

_HEAD: Final = (
    "| GPUs | Router | Prompt tokens from the cache | TTFT p50 | TTFT p99 "
    "| Token p50 | Token p99 |\n| --- | --- | --- | --- | --- | --- | --- |"
)


def table(rows: list[dict[str, Any]]) -> str:
    share = _common_share(rows)
    shown = sorted((row for row in rows if row["share"] == share), key=lambda row: row["gpus"])
    lines = [
        f"| {row['gpus']} | {row['router']} | {row['cached_share']:.0%} "
        f"| {1000 * row['ttft_p50_s']:.0f} ms | {row['ttft_p99_s']:.1f} s "
        f"| {row['ms_per_token_p50']:.1f} ms | {row['ms_per_token_p99']:.0f} ms |"
        for row in shown
    ]
    return "\n".join([_HEAD, *lines]) + "\n"


def _common_share(rows: list[dict[str, Any]]) -> float:
    """The load that all sizes had."""
    return float(max(rows, key=lambda row: row["gpus"])["share"])


def _rows() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(RESULTS.read_text(encoding="utf-8"))["rows"]
    return rows


if __name__ == "__main__":
    print(table(_rows()))
