"""What a sweep found: a table and a plot for a person, JSON for a program."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from rich.bar import Bar
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from parts.terminal.bench.sweep import BenchLoad, Point, Spread

_BUSY_CLIENT: Final = 0.8
_BAR_WIDTH: Final = 40


def as_json(url: str, load: BenchLoad, points: Sequence[Point]) -> str:
    found = [point.as_json() for point in points]
    return json.dumps({"url": url, "load": asdict(load), "points": found})


def show(console: Console, url: str, load: BenchLoad, points: Sequence[Point]) -> None:
    """Print the table, the plot and the caveats."""
    found: list[RenderableType] = [_table(points)]
    if any(point.tokens_per_s for point in points):
        found += [Text("\nTokens/s, all streams together", style="bold"), _plot(points)]
    show_framed(console, url, load, points, *found)


def show_framed(
    console: Console, url: str, load: BenchLoad, points: Sequence[Point], *found: RenderableType
) -> None:
    """Print what was asked, what was found, and the caveats."""
    asked = f"{load.prompt_words} words in, {load.max_tokens} tokens out, {load.rounds} rounds"
    console.print(f"{load.model} at {url}: {asked}\n", markup=False, highlight=False)
    for each in found:
        console.print(each)
    for note in notes(load, points):
        console.print(f"\n{note}", style="yellow", markup=False, highlight=False)


def _table(points: Sequence[Point]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in (
        "\nstreams",
        "\nrequests",
        "tokens\nin",
        "\ntokens/s",
        "each\nstream",
        "TTFT, ms\np50 / p99",
        "inter-token, ms\np50 / p99",
    ):
        table.add_column(title, justify="right", no_wrap=True)
    for point in points:
        table.add_row(*_cells(point))
    return table


def _cells(point: Point) -> list[str]:
    mean = point.inter_token.p50 if point.inter_token else None
    return [
        str(point.streams),
        str(point.requests),
        "-" if point.prompt_tokens is None else f"{point.prompt_tokens:.0f}",
        _number(point.tokens_per_s),
        _number(1 / mean if mean else None),
        milliseconds(point.ttft),
        milliseconds(point.inter_token),
    ]


def _number(value: float | None) -> str:
    return "-" if not value else f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def milliseconds(spread: Spread | None) -> str:
    """Both percentiles."""
    return "-" if spread is None else f"{_number(spread.p50 * 1e3)} / {_number(spread.p99 * 1e3)}"


def _plot(points: Sequence[Point]) -> Table:
    most = max(point.tokens_per_s for point in points)
    grid = Table.grid(padding=(0, 1))
    grid.add_column(justify="right")
    for point in points:
        bar = Bar(most, 0, point.tokens_per_s, width=_BAR_WIDTH, color="green")
        grid.add_row(str(point.streams), bar, _number(point.tokens_per_s))
    return grid


def notes(load: BenchLoad, points: Sequence[Point]) -> list[str]:
    """The caveats of the figures."""
    found = []
    if any(point.client_cpu > _BUSY_CLIENT for point in points):
        found.append(
            "The benchmark itself used most of a CPU core; the server may be faster than measured."
        )
    if any((point.tokens_per_event or 1) > 1.1 for point in points):
        found.append("Some events carry several tokens; inter-token p99 is per event.")
    if not load.ignores_end:
        found.append(
            "The server does not support ignore_eos; answers end when the model ends them, after "
            f"{load.max_tokens} tokens at most."
        )
    if any(point.prompt_tokens is None and point.output_tokens for point in points):
        found.append("The server reports no usage; each event is counted as one token.")
    for point in points:
        for message, number in point.errors.items():
            with_fields = "" if point.fields == "plain" else f" with {point.fields}"
            found.append(
                f"{number} of {point.requests} failed at {point.streams} streams{with_fields}: "
                f"{message}"
            )
    return found
