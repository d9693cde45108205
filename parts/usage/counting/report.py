"""Counts of many rows, added up by what a caller asks for; as CSV."""

from __future__ import annotations

import asyncio
import csv
import io
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from parts.usage.counting.ledger import Ledger
from parts.usage.store.base import UsageCounts, UsageRow, date_of

Group = Literal["key", "tenant", "model", "day"]
GROUPS: Final[tuple[Group, ...]] = ("key", "tenant", "model", "day")
Sums = dict[tuple[object, ...], UsageCounts]

_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")  # spreadsheets run what begins like this


@dataclass(frozen=True, slots=True)
class Filter:
    """Whose rows are asked for; None: all."""

    tenant: str | None = None
    keys: Collection[str] | None = None
    tenants: Collection[str] | None = None
    models: Collection[str] | None = None

    def takes(self, row: UsageRow) -> bool:
        wanted = ((self.keys, row.caller), (self.tenants, row.tenant), (self.models, row.model))
        return all(names is None or name in names for names, name in wanted)


async def sums(ledger: Ledger, days: range, groups: Sequence[Group], wanted: Filter) -> Sums:
    """The counts of these days by the groups' values; raises StoreError."""
    found: Sums = {}
    await ledger.write()
    for day in days:
        rows = await ledger.store.rows(day, wanted.tenant)
        await asyncio.to_thread(_add, found, rows, groups, wanted)
    return found


def _add(
    found: Sums, rows: Mapping[UsageRow, UsageCounts], groups: Sequence[Group], wanted: Filter
) -> None:
    for row, counts in rows.items():
        if wanted.takes(row):
            place = tuple(_value(row, group) for group in groups)
            found[place] = found.get(place, UsageCounts()).plus(counts)


def _value(row: UsageRow, group: Group) -> str:
    if group == "day":
        return date_of(row.day).isoformat()
    return row.caller if group == "key" else row.tenant if group == "tenant" else row.model


def objects(found: Sums, groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Each sum as an object, in the order of the groups' values."""
    ordered = sorted(found.items(), key=lambda each: tuple(map(str, each[0])))
    return [
        {"object": "usage", **dict(zip(groups, place, strict=True)), **_shown(counts)}
        for place, counts in ordered
    ]


def _shown(counts: UsageCounts) -> dict[str, float]:
    shown: dict[str, float] = counts._asdict()
    shown["gpu_seconds"] = shown.pop("gpu_ms") / 1000
    return shown


def as_csv(rows: Sequence[Mapping[str, Any]], groups: Sequence[Group]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns = (*groups, *_shown(UsageCounts()))
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_cell(row[name]) for name in columns])
    return text.getvalue()


def _cell(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
