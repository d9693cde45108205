"""Write the table of docs/internals/scale-log.md: `python -m tools.fleet.report`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

from tools.benchmarks.serving.plot import line_panel, write_panels
from tools.fleet.__main__ import RESULTS, SWEPT

PAGE: Final = Path("docs/internals/scale-log.md")
PICTURE: Final = Path("docs/pictures/fleet.svg")
_TABLE: Final = re.compile(r"(?<=\n)\| GPUs \| Router \|.*?\n(?!\|)", re.DOTALL)
_HEAD: Final = (
    "| GPUs | Router | Prompt tokens from the cache | TTFT p50 | TTFT p99 "
    "| Token p50 | Token p99 |\n| --- | --- | --- | --- | --- | --- | --- |"
)


def refreshed(page: str) -> str:
    """The page with the table as the results have it."""
    return _TABLE.sub(lambda _: table(_rows()), page)


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


def draw(rows: list[dict[str, Any]]) -> None:
    """The sweep of the load, as three panels."""
    swept = [row for row in rows if row["gpus"] == SWEPT]
    names = list(dict.fromkeys(row["router"] for row in swept))
    panels = [
        line_panel(
            f"{title}, by requests/s and GPU",
            {
                name: [(r["requests_s_gpu"], r[key]) for r in swept if r["router"] == name]
                for name in names
            },
        )
        for title, key in (("TTFT p50, s", "ttft_p50_s"), ("TTFT p99, s", "ttft_p99_s"))
    ]
    write_panels(PICTURE, panels, names)


def _common_share(rows: list[dict[str, Any]]) -> float:
    """The load that all sizes had."""
    return float(max(rows, key=lambda row: row["gpus"])["share"])


def _rows() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(RESULTS.read_text(encoding="utf-8"))["rows"]
    return rows


if __name__ == "__main__":
    PAGE.write_text(refreshed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    draw(_rows())
