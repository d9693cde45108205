"""Results as a Markdown table, and what limits them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

_HEAD: Final = (
    "Load", "Server", "Requests", "Whole", "Tokens in", "Tokens/s", "TTFT p50 / p99, ms",
    "Per token p50 / p99, ms", "Gap p99 / max, ms", "Cached", "TTFT, token of plain", "Errors",
    "Seconds",
)  # fmt: skip
_BUSY_CLIENT: Final = 0.8


def table(rows: Sequence[dict[str, Any]]) -> str:
    """A row for each group of requests; of a search the rate, and the probe that found it.

    Columns that say nothing are left out.
    """
    cells: list[tuple[str, ...]] = [_HEAD]
    for row in rows:
        groups = row["groups"] if "groups" in row else _best_probe(row)
        cells += [_cells(row, name, group, len(groups)) for name, group in groups.items()]
    columns = [each for each in zip(*cells, strict=True) if not {*each[1:]} <= {"-"}]
    if len({row["server"] for row in rows}) < 2:
        columns = [each for each in columns if each[0] != "Server"]
    widths = [max(map(len, each)) for each in columns]
    lines = [
        " | ".join(cell.ljust(width) for cell, width in zip(each, widths, strict=True))
        for each in zip(*columns, strict=True)
    ]
    lines.insert(1, " | ".join("-" * width for width in widths))
    return "\n".join(f"| {each} |" for each in lines)


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
    whole, cached, share = group["whole"], group["cached_share"], group.get("share")
    return (
        load,
        row["server"],
        f"{group['requests']:,.0f}",
        f"{whole:,.0f}",
        f"{group['prompt_tokens'] / whole:,.0f}" if whole and group["has_usage"] else "-",
        f"{group['tokens_per_s']:,.0f}" if whole else "-",
        _times(group["ttft_ms"], "p50", "p99"),
        _times(group["ms_per_token"], "p50", "p99"),
        _times(group["gap_ms"], "p99", "max"),
        "-" if cached is None else f"{cached:.0%}",
        " / ".join(f"{each:.2f}" for each in share.values()) if share else "-",
        ", ".join(f"{kind} {num:.0f}" for kind, num in group.get("errors", {}).items()) or "-",
        f"{row['seconds']:.1f}" if "seconds" in row else "-",
    )


def _times(spread: dict[str, float], *names: str) -> str:
    return " / ".join(_number(spread[name]) for name in names) if spread else "-"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def notes(rows: Sequence[dict[str, Any]], servers: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The caveats of the figures."""
    if any(row.get("client_cpu", 0) > _BUSY_CLIENT for row in rows):
        yield (
            "The benchmark itself used most of a CPU core; the server may be faster than measured."
        )
    for server in servers:
        if not server["ignores_end"]:
            yield (
                f"{server['name']} does not support ignore_eos; answers end when the model ends "
                "them."
            )
    groups = [(row, *each) for row in rows for each in row.get("groups", {}).items()]
    for name in dict.fromkeys(row["server"] for row, _, group in groups if not group["has_usage"]):
        yield f"{name} reports no usage; each event is counted as one token."
    for row, name, group in groups:
        for kind, message in group.get("messages", {}).items():
            yield f"{row['server']}, {row['load']}, {name}: {kind}: {message}"
