"""A sweep from its first request to its report."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import click
from rich.console import Console

from parts.terminal.bench.fields import CASES, PLAIN, show_fields
from parts.terminal.bench.report import as_json, show
from parts.terminal.bench.sweep import Bench, BenchLoad, Point
from parts.terminal.client import ChatError, Client

MEASURED, FAILED, STOPPED = 0, 1, 130


def run(
    url: str,
    key: str | None,
    load: BenchLoad,
    streams: Sequence[int],
    *,
    is_fields: bool = False,
    is_json: bool,
) -> int:
    """Measure at each number of streams, tell what was found, and return the exit code.

    `is_fields`: with each case of sampling fields in turn.
    """
    points: list[Point] = []
    cases = CASES if is_fields else {PLAIN: {}}
    code = MEASURED
    try:
        with Client(url, key) as client:
            load = replace(load, model=load.model or client.first_model())
            bench = Bench(client.url, key, load)
        asyncio.run(sweep(bench, streams, cases, points))
    except ChatError as error:
        click.echo(f"harmonium bench: {error}", err=True)
        return FAILED
    except KeyboardInterrupt:
        code = STOPPED
    if is_json:
        click.echo(as_json(client.url, bench.load, points))
    elif points:
        (show_fields if is_fields else show)(Console(), client.url, bench.load, points)
    return code or (FAILED if any(point.failed for point in points) else MEASURED)


async def sweep(
    bench: Bench,
    streams: Sequence[int],
    cases: Mapping[str, Mapping[str, Any]],
    points: list[Point],
) -> None:
    """Measure each case at each number of streams into `points`; raises ChatError at the first
    request."""
    with Console(stderr=True).status("one request to warm up ...") as status:
        await bench.warm_up()
        for number, (name, asked) in product(streams, cases.items()):
            about = f"{number} streams, {number * bench.load.rounds} requests"
            status.update(f"{about} ..." if len(cases) == 1 else f"{about}, {name} ...")
            points.append(replace(await bench.run(number, asked), fields=name))
