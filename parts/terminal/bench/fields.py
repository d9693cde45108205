"""What sampling fields cost: the same load with each of them, beside one without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from parts.terminal.bench.report import milliseconds, show_framed
from parts.terminal.bench.sweep import BenchLoad, Point

PLAIN: Final = "plain"
_LOGPROBS: Final = {"logprobs": True, "top_logprobs": 5}
CASES: Final[dict[str, dict[str, Any]]] = {
    PLAIN: {},
    "temperature 0": {"temperature": 0},
    "seed": {"seed": 1},
    "stop": {"stop": ["\u2060\u2060"]},  # word joiners, which no model writes
    "logit_bias of 300": {"logit_bias": {str(500 * i): 1 for i in range(300)}},
    "top_p 0.9": {"top_p": 0.9},
    "top_k 40": {"top_k": 40},
    "min_p 0.05": {"min_p": 0.05},
    "two penalties": {"presence_penalty": 0.5, "frequency_penalty": 0.5},
    "repetition_penalty": {"repetition_penalty": 1.1},
    "logprobs 5": _LOGPROBS,
    "top_p, top_k, penalty, logprobs": {
        "top_p": 0.9, "top_k": 40, "presence_penalty": 0.5, **_LOGPROBS,
    },
}  # fmt: skip


def show_fields(console: Console, url: str, load: BenchLoad, points: Sequence[Point]) -> None:
    """Print a row for each case and number of streams, and the caveats."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("\nstreams", justify="right", no_wrap=True)
    table.add_column("\nfields", no_wrap=True)
    table.add_column("inter-token, ms\np50 / p99", justify="right", no_wrap=True)
    table.add_column("p50, share\nof plain", justify="right", no_wrap=True)
    shares = shares_of_plain(points)
    for point, share in zip(points, shares, strict=True):
        table.add_row(
            str(point.streams),
            point.fields,
            milliseconds(point.inter_token),
            "-" if share is None else f"{share:.2f}",
        )
    show_framed(console, url, load, points, table)


def shares_of_plain(points: Sequence[Point]) -> list[float | None]:
    """Each point's time per token over that of the plain one with as many streams."""
    plain = _seconds({point.streams: point for point in points if point.fields == PLAIN})
    return [
        point.inter_token.p50 / plain[point.streams]
        if point.inter_token is not None and point.streams in plain
        else None
        for point in points
    ]


def _seconds(plain: Mapping[int, Point]) -> dict[int, float]:
    return {n: p.inter_token.p50 for n, p in plain.items() if p.inter_token is not None}
