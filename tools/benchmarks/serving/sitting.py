"""One sitting: every load against every server in turn, kept as soon as it is known."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tools.benchmarks.serving.client import Connector, Server
from tools.benchmarks.serving.figures import Objective, figures
from tools.benchmarks.serving.search import Rate
from tools.benchmarks.serving.table import line
from tools.benchmarks.serving.traffic import Load


@dataclass(frozen=True, slots=True)
class Planned:
    """A load and how it was asked for."""

    text: str
    load: Load | Rate


class Results:
    """The rows of a sitting, one for each load and server."""

    def __init__(
        self, servers: Sequence[Server], objective: Objective, path: Path | None = None
    ) -> None:
        self._head = {
            "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "servers": [{"name": s.name, "model": s.model, "extra": s.extra} for s in servers],
            "objective": asdict(objective),
        }
        self._path = path
        self.rows: list[dict[str, Any]] = []

    @classmethod
    def merged(cls, found: Sequence[dict[str, Any]]) -> Results:
        """The rows of several sittings, load by load."""
        results = cls((), Objective())
        rows = [row for each in found for row in each["rows"]]
        order = {text: n for n, text in reversed([*enumerate(row["load"] for row in rows)])}
        results.rows = sorted(rows, key=lambda row: order[row["load"]])
        return results

    def add(self, row: dict[str, Any]) -> None:
        """Keep a row, on disk too."""
        self.rows.append(row)
        print(line(row), flush=True)
        if self._path is not None:
            partial = self._path.with_name(f"{self._path.name}.partial")
            partial.write_text(json.dumps({**self._head, "rows": self.rows}, indent=1) + "\n")
            os.replace(partial, self._path)


async def sit(
    results: Results,
    servers: Sequence[Server],
    loads: Sequence[Planned],
    objective: Objective,
    seed: int,
    *,
    is_warmed: bool,
) -> None:
    """Run the loads."""
    for planned in loads:
        for server in servers:
            connector = Connector(server)
            if is_warmed:
                await run(planned.load, connector, seed, objective)
            found = await run(planned.load, connector, seed, objective)
            results.add({"load": planned.text, "server": server.name, "warmed": is_warmed, **found})


async def run(
    load: Load | Rate, connector: Connector, seed: int, objective: Objective
) -> dict[str, Any]:
    """Run one load once. `client_cpu`: this program's share of one core, to tell who was slow."""
    gc.collect()
    gc.disable()  # a collection would show as a gap between tokens
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    try:
        if isinstance(load, Rate):
            found = await load.search(connector, seed, objective)
            cpu_s, elapsed_s = time.process_time(), time.perf_counter()
        else:
            traffic = await load.run(connector, seed)
            cpu_s, elapsed_s = time.process_time(), time.perf_counter()
            found = figures(traffic, objective)
    finally:
        gc.enable()
    await asyncio.sleep(0.2)  # what was cancelled has left the server
    return {**found, "client_cpu": round((cpu_s - began_cpu_s) / (elapsed_s - began_s), 2)}
