"""Tokens/s of a user against tokens/s of a GPU: the plot of a plan, as SVG and in letters."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

from parts.plan.capacity import CapacityPlan, Curve, PlanOption

TITLE = "tok/s per GPU against tok/s per user"
_STEPS = (1, 2, 5)  # the marks of an axis in each power of ten
_COLOURS = (
    *("#1f77b4", "#d62728", "#2ca02c", "#ff7f0e", "#9467bd", "#8c564b"),
    *("#e377c2", "#17becf", "#bcbd22", "#7f7f7f", "#393b79", "#637939"),
)
_ROWS = 18  # in the terminal
_MARGIN = 9  # left of it, for the numbers
Place = Callable[[float, float], tuple[float, float]]  # of a point, in the picture


@dataclass(frozen=True, slots=True)
class Axis:
    """A logarithmic axis from `low` to `high`."""

    low: float
    high: float

    def place(self, value: float) -> float:
        return log10(value / self.low) / log10(self.high / self.low)

    @property
    def marks(self) -> list[float]:
        """The values within the axis that get a mark: round ones of each power of ten."""
        powers = range(floor(log10(self.low)), ceil(log10(self.high)) + 1)
        every = [step * 10.0**power for power in powers for step in _STEPS]
        return [mark for mark in every if self.low <= mark <= self.high]


def axes(plan: CapacityPlan) -> tuple[Axis, Axis]:
    """Make the axes, x and y, that hold every point of every curve."""
    points = [point for curve in plan.curves for point in curve.points]
    return _axis(x for x, _ in points), _axis(y for _, y in points)


def _axis(values: Iterable[float]) -> Axis:
    every = sorted(values)
    low, high = every[0], every[-1]
    return Axis(low * 0.9, high * 1.1)


def _chosen_point(chosen: PlanOption | None) -> tuple[float, float] | None:
    if chosen is None:
        return None
    return chosen.served.tokens_per_s_per_user, chosen.tokens_per_s_per_gpu


def as_terminal(plan: CapacityPlan, width: int) -> list[str]:
    """Draw the plot in letters, a curve each; '#' is what to take, ':' the speed asked for."""
    x_axis, y_axis = axes(plan)
    columns = width - _MARGIN - 1
    grid = [[" "] * columns for _ in range(_ROWS)]

    def put(x: float, y: float, letter: str) -> None:
        column = min(columns - 1, round(x_axis.place(x) * (columns - 1)))
        row = min(_ROWS - 1, round((1 - y_axis.place(y)) * (_ROWS - 1)))
        grid[row][column] = letter

    wanted = plan.demand.tokens_per_s
    if wanted is not None and x_axis.low <= wanted <= x_axis.high:
        column = round(x_axis.place(wanted) * (columns - 1))
        for row in grid:
            row[column] = ":"
    letters = [chr(ord("a") + i) for i in range(len(plan.curves))]
    for letter, curve in zip(letters, plan.curves, strict=True):
        for x, y in curve.points:
            put(x, y, letter)
    point = _chosen_point(plan.chosen)
    if point is not None:
        put(*point, "#")
    names = [f"  {letter} {c.label}" for letter, c in zip(letters, plan.curves, strict=True)]
    return [
        f"{TITLE}, both logarithmic{' (#: recommended)' if point else ''}",
        *_framed(grid, y_axis),
        _x_line(x_axis, columns),
        *names,
    ]


def _framed(grid: list[list[str]], y_axis: Axis) -> list[str]:
    labels = {round((1 - y_axis.place(mark)) * (_ROWS - 1)): mark for mark in y_axis.marks}
    return [
        f"{f'{labels[i]:,.0f}' if i in labels else '':>{_MARGIN - 2}} |{''.join(row)}".rstrip()
        for i, row in enumerate(grid)
    ]


def _x_line(x_axis: Axis, columns: int) -> str:
    """Write the numbers under the grid, left out where they would touch."""
    line = [" "] * (columns + _MARGIN)
    for mark in x_axis.marks:
        text = f"{mark:,.0f}"
        start = _MARGIN + round(x_axis.place(mark) * (columns - 1)) - len(text) // 2
        if all(c == " " for c in line[max(0, start - 1) : start + len(text) + 1]):
            line[start : start + len(text)] = text
    return "".join(line).rstrip()


_WIDTH, _HEIGHT = 900, 560
_LEFT, _RIGHT, _TOP, _BOTTOM = 80, 250, 60, 60


def as_svg(plan: CapacityPlan) -> str:
    """Draw the plot as a self-contained file without scripts or fonts."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        _text(_LEFT, 24, _heading(plan), size=16),
        _text(_LEFT, 44, "An estimate, not a measurement.", colour="#666"),
    ]
    if plan.curves:
        parts += _drawing(plan)
    return "\n".join([*parts, "</svg>", ""])


def _heading(plan: CapacityPlan) -> str:
    demand, gpu = plan.demand, plan.machine.hardware.gpus[0].name
    return f"{gpu}, {demand.isl:,} tokens in, {demand.osl:,} out"


def _drawing(plan: CapacityPlan) -> list[str]:
    x_axis, y_axis = axes(plan)

    def at(x: float, y: float) -> tuple[float, float]:
        return (
            _LEFT + x_axis.place(x) * (_WIDTH - _LEFT - _RIGHT),
            _HEIGHT - _BOTTOM - y_axis.place(y) * (_HEIGHT - _TOP - _BOTTOM),
        )

    parts = _grid(x_axis, y_axis, at)
    wanted = plan.demand.tokens_per_s
    if wanted is not None and x_axis.low <= wanted <= x_axis.high:
        x, bottom = at(wanted, y_axis.low)
        parts.append(_line(x, _TOP, x, bottom, "#444", dashed=True))
        parts.append(_text(x + 4, _TOP + 12, f"{wanted:,g} tok/s requested", colour="#444"))
    for number, curve in enumerate(plan.curves):
        parts += _curve(number, curve, at)
    if point := _chosen_point(plan.chosen):
        x, y = at(*point)
        style = 'fill="none" stroke="black" stroke-width="2"'
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="8" {style}/>')
        parts.append(_text(_WIDTH - _RIGHT + 16, _HEIGHT - _BOTTOM, "circle: recommended"))
    return parts


def _curve(number: int, curve: Curve, at: Place) -> list[str]:
    """Draw a curve's line, its points and its entry in the legend."""
    colour = _COLOURS[number % len(_COLOURS)]
    dash = ' stroke-dasharray="6 3"' if number >= len(_COLOURS) else ""
    places = [at(x, y) for x, y in curve.points]
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    left, top = _WIDTH - _RIGHT + 16, _TOP + 16 + 20 * number
    return [
        f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>',
        *(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places),
        f'<rect x="{left}" y="{top - 9}" width="12" height="10" fill="{colour}"/>',
        _text(left + 18, top, curve.label),
    ]


def _grid(x_axis: Axis, y_axis: Axis, at: Place) -> list[str]:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    parts = []
    for mark in x_axis.marks:
        x, _ = at(mark, y_axis.low)
        parts.append(_line(x, _TOP, x, bottom, "#ddd"))
        parts.append(_text(x, bottom + 18, f"{mark:,.0f}", anchor="middle"))
    for mark in y_axis.marks:
        _, y = at(x_axis.low, mark)
        parts.append(_line(_LEFT, y, right, y, "#ddd"))
        parts.append(_text(_LEFT - 6, y + 4, f"{mark:,.0f}", anchor="end"))
    parts.append(
        f'<rect x="{_LEFT}" y="{_TOP}" width="{right - _LEFT}" height="{bottom - _TOP}" '
        'fill="none" stroke="#444"/>'
    )
    middle = (_LEFT + right) / 2
    parts.append(_text(middle, bottom + 42, "tok/s per user", anchor="middle"))
    parts += (
        _text(8, _TOP + 16, "tok/s", colour="#666"),
        _text(8, _TOP + 32, "per GPU", colour="#666"),
    )
    return parts


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, dashed: bool = False) -> str:
    dash = ' stroke-dasharray="4 4"' if dashed else ""
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"{dash}/>'
    )


def _text(
    x: float, y: float, text: str, anchor: str = "start", colour: str = "#222", size: int = 13
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}" '
        f'font-size="{size}">{escape(text)}</text>'
    )
