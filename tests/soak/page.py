"""One page of a soak: its figures, and what its processes held all the while.

`python -m tests.soak.page RESULT.json PAGE.svg` draws it anew from a recorded result.
"""

from __future__ import annotations

import html
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

_WIDTH, _LEFT, _RIGHT = 960, 70, 20
_PLOT, _GAP = 130, 46
_ROLES: Final = {  # whose memory is drawn as a line of its own, and its colour
    "engine 0": "#1c6b45",
    "engine 1": "#5aa27d",
    "worker 0": "#8a5a00",
    "worker 1": "#c9963b",
    "main": "#54487a",
}
_PLOTS: Final = (
    ("files", "open files of all processes"),
    ("threads", "threads of all processes"),
    ("sockets", "sockets of all processes"),
    ("disk_mb", "disk: cache and temporary files, MB"),
    ("requests_per_s", "requests that ended, per second"),
)
_STYLE: Final = (
    "text{font:13px system-ui,sans-serif;fill:#1d211e}.e{text-anchor:end}.h{font-weight:600;"
    "font-size:18px}.t{font-weight:600}.g{stroke:#d5dad6}.f{stroke:#b3402f;stroke-opacity:.18}"
    ".r{stroke:#2d4f9e;stroke-opacity:.7}path{fill:none}.l{stroke-width:1.6}"
)
_STARTS: Final = ("the server is rolled", "the server is killed")


def drawn(result: Mapping[str, Any]) -> str:
    """The page, as SVG."""
    texts = _texts(result)
    top = 50 + 19 * len(texts) + 20
    height = top + (1 + len(_PLOTS)) * (_PLOT + _GAP) + 10
    title = f"Soak of {result['seconds'] / 60:.0f} minutes: 2 API workers, 2 engines of nano"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}">',
        f"<title>{title}</title><style>{_STYLE}</style>",
        f'<rect width="{_WIDTH}" height="{height}" fill="#fff"/>',
        f'<text class="h" x="{_LEFT}" y="30">{title}</text>',
        *(
            f'<text x="{_LEFT}" y="{54 + 19 * number}">{html.escape(text)}</text>'
            for number, text in enumerate(texts)
        ),
    ]
    samples, end_s = result["samples"], max(float(result["seconds"]), 1.0)
    lines = {
        role: ([sample["memory_mb"].get(role) for sample in samples], colour)
        for role, colour in _ROLES.items()
    }
    legend = "memory (PSS) of each process, MB"
    parts += _plot(result, end_s, top, legend, lines)
    for number, (name, legend) in enumerate(_PLOTS, 1):
        lines = {name: ([sample[name] for sample in samples], "#1d211e")}
        parts += _plot(result, end_s, top + number * (_PLOT + _GAP), legend, lines)
    return "\n".join([*parts, "</svg>", ""])


def _texts(result: Mapping[str, Any]) -> list[str]:
    outcomes = [f"{number:,} {name}" for name, number in result["outcomes"].items()]
    rows = [outcomes[at : at + 4] for at in range(0, len(outcomes), 4)]
    done = ", ".join(f"{name} {number} ×" for name, number in result["faults"].items())
    half = done.find(", ", len(done) // 2)
    grown = ", ".join(
        f"{name} {result[f'{name}_growth']:+g}" for name in ("files", "sockets", "disk_mb")
    )
    return [
        f"{result['requests']:,} requests, {result['unanswered']} lost. How they ended:",
        *(f"   {', '.join(row)}" for row in rows),
        f"Done to it: {done[:half]},",
        f"   {done[half + 2 :]} (red lines; rolls and kills of the server are blue)",
        f"From the second quarter of the run to the last: {grown}. Without kills (its last part),",
        f"   memory of the main process and the workers {result['server_mb_growth']:+g} MB; in the "
        f"second half of that, of the engines {result['engines_mb_growth']:+g} MB,",
        f"   and threads {result['threads_growth']:+g} ({result['threads_in_all_growth']:+g} over "
        "the whole run, as pools of threads fill up).",
        *([result["note"]] if "note" in result else []),
        f"Tracebacks in the log {result['tracebacks']}, processes left {result['processes_left']}, "
        f"folders left {result['folders_left']}, rolls that failed {result['failed_rolls']}, exit "
        f"code {result['exit_code']}",
    ]


def _plot(
    result: Mapping[str, Any],
    end_s: float,
    top: float,
    legend: str,
    lines: Mapping[str, tuple[Sequence[float | None], str]],
) -> list[str]:
    bottom, right = top + _PLOT, _WIDTH - _RIGHT
    found = [value for values, _ in lines.values() for value in values if value is not None]
    most = _round_up(max(found, default=1.0))

    def x(at_s: float) -> float:
        return round(_LEFT + (right - _LEFT) * min(at_s / end_s, 1.0), 1)

    parts = [f'<text class="t" x="{_LEFT}" y="{top - 8}">{legend}</text>']
    for share in (0.0, 0.5, 1.0):
        y = bottom - share * _PLOT
        parts.append(f'<path class="g" d="M{_LEFT} {y:g}H{right}"/>')
        parts.append(f'<text class="e" x="{_LEFT - 8}" y="{y + 4:g}">{share * most:g}</text>')
    for minutes in range(0, int(end_s // 60) + 1, _every(end_s / 60)):
        parts.append(f'<text x="{x(60 * minutes)}" y="{bottom + 17}">{minutes} min</text>')
    for at_s, name in result["done"]:
        kind = "r" if name in _STARTS else "f"
        parts.append(f'<path class="{kind}" d="M{x(at_s)} {top}V{bottom}"/>')
    for number, (name, (values, colour)) in enumerate(lines.items()):
        path, is_open = [], False
        for sample, value in zip(result["samples"], values, strict=True):
            if value is None:
                is_open = False
                continue
            y = round(bottom - _PLOT * value / most, 1)
            path.append(f"{'L' if is_open else 'M'}{x(sample['at_s'])} {y}")
            is_open = True
        parts.append(f'<path class="l" stroke="{colour}" d="{"".join(path)}"/>')
        if len(lines) > 1:
            at = right - 90 * (len(lines) - number)
            parts.append(f'<text x="{at + 22}" y="{top - 8}">{name}</text>')
            parts.append(f'<path class="l" stroke="{colour}" d="M{at} {top - 12}h18"/>')
    return parts


def _round_up(value: float) -> float:
    """The next of 1, 2, 5 times a power of ten."""
    step = 1.0
    while step * 10 < value:
        step *= 10
    return next(
        step * factor for factor in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if step * factor >= value
    )


def _every(minutes: float) -> int:
    return next(each for each in (1, 2, 5, 10, 20, 60, 600) if minutes / each <= 14)


def main() -> None:
    """Draw a recorded result."""
    result, page = map(Path, sys.argv[1:])
    page.write_text(drawn(json.loads(result.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main()
