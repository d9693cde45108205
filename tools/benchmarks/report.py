"""How results are shown: a table for a person, one JSON line for a machine."""

from __future__ import annotations

import json
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One figure beside its peer and its physical limit."""

    case: str
    ours: float
    unit: str
    peer: float | None = None
    limit: float | None = None  # memory bandwidth over the bytes of a step
    target: str = ""
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Ours over the peer's."""
        return self.ours / self.peer if self.peer else None


def median(values: Sequence[float]) -> float:
    """The median; every figure here is one."""
    return statistics.median(values)


def show(rows: Sequence[Row]) -> None:
    """Print the table and, last, the JSON line."""
    cells = [("case", "ours", "peer", "ratio", "limit", "unit", "target", "note")]
    cells += [
        (
            row.case,
            _number(row.ours),
            _number(row.peer),
            f"{row.ratio:.2f}x" if row.ratio else "-",
            _number(row.limit),
            row.unit,
            row.target or "-",
            row.note,
        )
        for row in rows
    ]
    widths = [max(len(cell[column]) for cell in cells) for column in range(len(cells[0]))]
    for cell in cells:
        print("  ".join(text.ljust(width) for text, width in zip(cell, widths, strict=True)))
    print(
        json.dumps(
            {
                "machine": platform.processor() or platform.machine(),
                "python": platform.python_version(),
                "rows": [asdict(row) | {"ratio": row.ratio} for row in rows],
            }
        )
    )


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
