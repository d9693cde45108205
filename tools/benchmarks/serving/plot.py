"""Results as an SVG: the Poisson sweep as lines, the other loads' seconds as bars."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

_WIDTH, _HEIGHT, _MARGIN = 420, 280, 56
_COLOURS: Final = ("#2563eb", "#dc2626", "#059669", "#d97706", "#7c3aed")
Point = tuple[float, float]


def write_plot(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write the panels that the rows have figures for."""
    names = list(dict.fromkeys(row["server"] for row in rows))
    panels = [
        line_panel("TTFT p99, ms, by requests/s", _sweep(rows, names, "ttft_ms")),
        line_panel("Gap p99, ms, by requests/s", _sweep(rows, names, "gap_ms")),
        _bars("Seconds of a whole load", rows, names),
    ]
    write_panels(path, panels, names)


def write_panels(path: Path, panels: Sequence[list[str]], names: Sequence[str]) -> None:
    """Write those that have a content side by side, and whose colour is which below them."""
    shown = [panel for panel in panels if panel]
    width = max(len(shown), 1) * _WIDTH
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {_HEIGHT + 24}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{_HEIGHT + 24}" fill="white"/>',
    ]
    for number, panel in enumerate(shown):
        parts.append(f'<g transform="translate({number * _WIDTH} 0)">{"".join(panel)}</g>')
    for number, name in enumerate(names):
        x = _MARGIN + 120 * number
        parts.append(
            f'<rect x="{x}" y="{_HEIGHT + 4}" width="10" height="10" fill="{_colour(number)}"/>'
        )
        parts.append(f'<text x="{x + 14}" y="{_HEIGHT + 13}">{escape(name)}</text>')
    path.write_text("\n".join([*parts, "</svg>"]) + "\n")


def _colour(number: int) -> str:
    return _COLOURS[number % len(_COLOURS)]


def _sweep(
    rows: Sequence[dict[str, Any]], names: Sequence[str], figure: str
) -> dict[str, list[Point]]:
    """One line a server over the rates of its Poisson loads."""
    series: dict[str, list[Point]] = {name: [] for name in names}
    for row in rows:
        if row["load"].startswith("poisson=") and row["groups"]["all"]["whole"]:
            rate = float(row["load"].partition("=")[2].partition(",")[0])
            series[row["server"]].append((rate, row["groups"]["all"][figure]["p99"]))
    return series


def line_panel(title: str, series: dict[str, list[Point]]) -> list[str]:
    """A line for each series, or nothing where all points have the same x."""
    points = [point for of in series.values() for point in of]
    if len({x for x, _ in points}) < 2:
        return []
    right, top = max(x for x, _ in points), _round_up(max(y for _, y in points))
    parts = _frame(title, top)
    for number, of in enumerate(series.values()):
        placed = [(_x(x / right), _y(y / top)) for x, y in sorted(of)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
        colour = _colour(number)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in placed]
    for x in sorted({x for x, _ in points}):
        parts.append(
            f'<text x="{_x(x / right):.1f}" y="{_HEIGHT - _MARGIN + 16}" '
            f'text-anchor="middle">{x:g}</text>'
        )
    return parts


def _bars(title: str, rows: Sequence[dict[str, Any]], names: Sequence[str]) -> list[str]:
    """A group of bars a load, one bar a server."""
    loads = [row["load"] for row in rows if row["load"].startswith(("agents=", "burst="))]
    loads = list(dict.fromkeys(loads))
    if not loads:
        return []
    seconds = {(row["load"], row["server"]): row["seconds"] for row in rows if row["load"] in loads}
    top = _round_up(max(seconds.values()))
    parts, width = _frame(title, top), 0.8 / len(loads) / len(names)
    for i, load in enumerate(loads):
        for number, name in enumerate(names):
            height = seconds.get((load, name), 0.0) / top
            left = _x((i + 0.1) / len(loads) + number * width)
            parts.append(
                f'<rect x="{left:.1f}" y="{_y(height):.1f}" width="{width * _inner()[0]:.1f}" '
                f'height="{height * _inner()[1]:.1f}" fill="{_colour(number)}"/>'
            )
        parts.append(
            f'<text x="{_x((i + 0.5) / len(loads)):.1f}" y="{_HEIGHT - _MARGIN + 16}" '
            f'text-anchor="middle">{escape(load)}</text>'
        )
    return parts


def _frame(title: str, top: float) -> list[str]:
    """The title, the axes and four values of the vertical one."""
    parts = [f'<text x="{_MARGIN}" y="24" font-weight="bold">{escape(title)}</text>']
    for step in range(5):
        y = _y(step / 4)
        parts.append(f'<line x1="{_x(0)}" x2="{_x(1)}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(
            f'<text x="{_MARGIN - 6}" y="{y + 4:.1f}" text-anchor="end">{top * step / 4:g}</text>'
        )
    return parts


def _inner() -> tuple[float, float]:
    return _WIDTH - 1.5 * _MARGIN, _HEIGHT - 2 * _MARGIN


def _x(share: float) -> float:
    return _MARGIN + share * _inner()[0]


def _y(share: float) -> float:
    return _HEIGHT - _MARGIN - share * _inner()[1]


def _round_up(value: float) -> float:
    """The next of 1, 2, 4 and 8 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(max(value, 1e-3)))
    return next(n * power for n in (1, 2, 4, 8, 10) if n * power >= value)
