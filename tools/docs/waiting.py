"""docs/pictures/waiting.svg: how long requests wait by their length, in both orders.

`python -m tools.docs.waiting` draws it from what tools/benchmarks/waiting.py simulated.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
RESULTS: Final = ROOT / "tools" / "benchmarks" / "results" / "waiting-simulated.json"
PICTURE: Final = ROOT / "docs" / "pictures" / "waiting.svg"

_WIDTH, _HEIGHT = 760, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 20, 56, 64
_SECONDS: Final = (0.1, 0.3, 1, 3, 10, 30)
_LEAST_S, _MOST_S = 0.1, 60.0
_ORDERS: Final = {  # colour, dark enough on white, and name
    "by_arrival": ("#8a5a00", "order of arrival"),
    "shortest_first": ("#1c6b45", "shortest first, as served"),
}
_STYLE: Final = (
    "text{font:13px system-ui,sans-serif;fill:#1d211e}.m{text-anchor:middle}.e{text-anchor:end}"
    ".g{stroke:#d5dad6;stroke-width:1}path{fill:none;stroke-width:2.5}.p99{stroke-dasharray:5 4}"
)


def main() -> None:
    """Draw it anew."""
    PICTURE.write_text(drawn(), encoding="utf-8")


def drawn() -> str:
    """The picture, as SVG."""
    found: Mapping[str, Sequence[Mapping[str, Any]]]
    found = json.loads(RESULTS.read_text(encoding="utf-8"))["by_length"]
    title = "Time to first token by prompt length, one caller above capacity, simulated"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}">',
        f"<title>{title}</title><style>{_STYLE}</style>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>',
        f'<text x="{_LEFT}" y="20">{title}</text>',
        *_axes([row["up_to_tokens"] for row in found["by_arrival"]]),
    ]
    for number, (order, (colour, name)) in enumerate(_ORDERS.items()):
        for at in ("p50", "p99"):
            parts.append(_line([row[at] for row in found[order]], colour, at))
        x = _LEFT + 320 * number
        parts.append(f'<path class="p50" stroke="{colour}" d="M{x} 38h26"/>')
        parts.append(f'<path class="p99" stroke="{colour}" d="M{x + 32} 38h26"/>')
        parts.append(f'<text x="{x + 66}" y="42">{name}: median, p99</text>')
    return "\n".join([*parts, "</svg>", ""])


def _axes(lengths: Sequence[int]) -> list[str]:
    parts = []
    for seconds in _SECONDS:
        y = _y(seconds)
        parts.append(f'<path class="g" d="M{_LEFT} {y}H{_WIDTH - _RIGHT}"/>')
        parts.append(f'<text class="e" x="{_LEFT - 8}" y="{y + 4}">{seconds:g} s</text>')
    for index, most in enumerate(lengths):
        x = _x(index, len(lengths))
        parts.append(f'<text class="m" x="{x}" y="{_HEIGHT - _BOTTOM + 22}">{most:,}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) // 2
    parts.append(f'<text class="m" x="{middle}" y="{_HEIGHT - 16}">prompt tokens, up to</text>')
    return parts


def _line(values: Sequence[float], colour: str, kind: str) -> str:
    points = [f"{_x(index, len(values))} {_y(value)}" for index, value in enumerate(values)]
    return f'<path class="{kind}" stroke="{colour}" d="M{"L".join(points)}"/>'


def _x(index: int, num: int) -> int:
    return round(_LEFT + (index + 0.5) * (_WIDTH - _LEFT - _RIGHT) / num)


def _y(seconds: float) -> int:
    """Where a time is on the logarithmic axis."""
    share = math.log(seconds / _LEAST_S) / math.log(_MOST_S / _LEAST_S)
    return round(_HEIGHT - _BOTTOM - share * (_HEIGHT - _BOTTOM - _TOP))


if __name__ == "__main__":
    main()
