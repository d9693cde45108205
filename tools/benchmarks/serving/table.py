"""Results as a Markdown table, and one row as a line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

_HEAD = (
    "Load", "Server", "Requests", "Whole / rejected / failed", "TTFT p50 / p99 / max, ms",
    "Per token p50 / p99, ms", "Gap p50 / p99 / max, ms", "Cached", "Good", "Tokens/s", "Seconds",
)  # fmt: skip


def line(row: dict[str, Any]) -> str:
    """One row as one line of JSON."""
    return json.dumps(row)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """A row for each group of requests; of a search the rate, and the probe that found it."""
    cells = [_HEAD, ("---",) * len(_HEAD)]
    for row in rows:
        groups = row["groups"] if "groups" in row else _best_probe(row)
        cells += [_cells(row, name, group, len(groups)) for name, group in groups.items()]
    return "\n".join(f"| {' | '.join(each)} |" for each in cells)


def _best_probe(row: dict[str, Any]) -> dict[str, Any]:
    rate = row["highest_rate"]
    best = [probe for probe in row["probes"] if probe["holds"] and probe["rate"] == rate]
    return {f"{rate:g} requests/s": best[-1] if best else {}}


def _cells(
    row: dict[str, Any], name: str, group: dict[str, Any], num_groups: int
) -> tuple[str, ...]:
    load = row["load"]
    if num_groups > 1 or name != "all":
        load = f"{load}: {name}"
    if not group:
        return (load, row["server"], *["-"] * (len(_HEAD) - 2))
    requests = group["requests"]
    return (
        load,
        row["server"],
        f"{requests:,}",
        f"{group['whole']:,} / {group['rejected']:,} / {group['failed']:,}",
        _times(group["ttft_ms"], "p50", "p99", "max"),
        _times(group["ms_per_token"], "p50", "p99"),
        _times(group["gap_ms"], "p50", "p99", "max"),
        f"{group['cached_share']:.0%}",
        f"{group['good'] / requests:.0%}",
        f"{group['tokens_per_s']:,.0f}",
        f"{row['seconds']:.1f}" if "seconds" in row else "-",
    )


def _times(spread: dict[str, float], *names: str) -> str:
    return " / ".join(_number(spread[name]) for name in names) if spread else "-"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
