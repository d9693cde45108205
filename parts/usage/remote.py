"""A server's usage, by HTTP."""

from __future__ import annotations

import csv
from collections.abc import Mapping

import click
import httpx2

from service.cli.server_flags import refusal, unreachable


def ask(base: str, key: str | None, query: Mapping[str, str], form: str) -> str:
    """The usage as it is to be shown; raises ClickException."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    headers["Accept"] = "application/json" if form == "json" else "text/csv"
    try:
        answer = httpx2.get(f"{base}/v1/usage", params=query, headers=headers, timeout=60)
    except httpx2.HTTPError as error:
        raise click.ClickException(unreachable(base, error)) from None
    if not answer.is_success:
        raise click.ClickException(refusal(answer))
    if form == "table":
        return _table(list(csv.reader(answer.text.splitlines())))
    return answer.text if answer.text.endswith("\n") else f"{answer.text}\n"


def _table(rows: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = zip(row, widths, strict=True)
        lines.append("  ".join(_aligned(cell, width) for cell, width in cells).rstrip())
    return "".join(f"{line}\n" for line in lines)


def _aligned(cell: str, width: int) -> str:
    return cell.rjust(width) if cell.replace(".", "", 1).isdigit() else cell.ljust(width)
