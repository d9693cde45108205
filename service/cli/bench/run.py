"""A sweep from its first request to its report."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import click
from rich.console import Console

from service.cli.bench.report import as_json, show
from service.cli.bench.sweep import Bench, BenchLoad, Point
from service.cli.chat.client import ChatError, Client

MEASURED, FAILED, STOPPED = 0, 1, 130


def run(
    url: str, key: str | None, load: BenchLoad, streams: Sequence[int], *, is_json: bool
) -> int:
    """Measure at each number of streams, tell what was found, and return the exit code."""
    points: list[Point] = []
    code = MEASURED
    try:
        with Client(url, key) as client:
            load = replace(load, model=load.model or client.first_model())
            bench = Bench(client.url, key, load)
        asyncio.run(_sweep(bench, streams, points))
    except ChatError as error:
        click.echo(f"harmonium bench: {error}", err=True)
        return FAILED
    except KeyboardInterrupt:
        code = STOPPED
    if is_json:
        click.echo(as_json(client.url, bench.load, points))
    elif points:
        show(Console(), client.url, bench.load, points)
    return code or (FAILED if any(point.failed for point in points) else MEASURED)


async def _sweep(bench: Bench, streams: Sequence[int], points: list[Point]) -> None:
    with Console(stderr=True).status("one request to warm up ...") as status:
        await bench.warm_up()
        for number in streams:
            status.update(f"{number} streams, {number * bench.load.rounds} requests ...")
            points.append(await bench.run(number))
