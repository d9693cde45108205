"""One sitting: every load against every server in turn, kept as soon as it is known."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from parts.terminal.bench.bodies import Bodies
from parts.terminal.bench.exchange import Connector, Server, parse
from parts.terminal.bench.figures import Objective, figures, median_of
from parts.terminal.bench.loads import Planned
from parts.terminal.bench.search import Rate
from parts.terminal.bench.traffic import UserLoad
from parts.terminal.client import ChatError

_WARM_UP_TOKENS = 16


@dataclass(frozen=True, slots=True)
class How:
    """How often each load runs, and what counts as good."""

    objective: Objective
    seed: int = 0
    repeats: int = 1
    is_warmed: bool = False  # each load runs once before it counts


class BenchResults:
    """The rows of a sitting, one for each load and server."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self.servers: list[dict[str, Any]] = []
        self.rows: list[dict[str, Any]] = []

    @classmethod
    def merged(cls, found: Sequence[dict[str, Any]]) -> BenchResults:
        """Put the rows of several sittings side by side, load by load."""
        results = cls()
        rows = [row for each in found for row in each["rows"]]
        order = {text: n for n, text in reversed([*enumerate(row["load"] for row in rows)])}
        results.rows = sorted(rows, key=lambda row: order[row["load"]])
        results.servers = [server for each in found for server in each["servers"]]
        return results

    def as_json(self) -> dict[str, Any]:
        return {"began": self._began, "servers": self.servers, "rows": self.rows}

    def add(self, row: dict[str, Any]) -> None:
        """Keep a row, on disk too."""
        self.rows.append(row)
        if self._path is not None:
            partial = self._path.with_name(f"{self._path.name}.partial")
            partial.write_text(json.dumps(self.as_json(), indent=1) + "\n", encoding="utf-8")
            os.replace(partial, self._path)


async def known(server: Server) -> Server:
    """Ask once, and learn whether the server knows `ignore_eos`; raises ChatError."""
    bodies = Bodies(Connector(server))
    exchange = bodies.start(bodies.ask(bodies.text(_WARM_UP_TOKENS), _WARM_UP_TOKENS))
    await exchange.ended
    answer = parse(exchange)
    if answer.is_whole:
        return server
    if server.ignores_end and "ignore_eos" in answer.error:
        return await known(replace(server, ignores_end=False))
    raise ChatError(f"{server.url}: {answer.error_kind}: {answer.error or 'no answer'}")


async def sit(
    results: BenchResults,
    servers: Sequence[Server],
    loads: Sequence[Planned],
    how: How,
    tell: Callable[[str], None] = lambda _: None,
) -> None:
    """Run the loads; `tell` gets what runs now."""
    asked = []
    for server in servers:
        tell(f"one request to {server.name} ...")
        asked.append(await known(server))
        results.servers.append(
            {"name": server.name, "model": server.model, "ignores_end": asked[-1].ignores_end}
        )
    for planned in loads:
        for server in asked:
            runs = []
            for number in range(how.repeats + how.is_warmed):
                tell(f"{planned.text} to {server.name}, {number + 1} ...")
                runs.append(await run(planned.load, Connector(server), how.seed, how.objective))
            runs = runs[how.is_warmed :]
            row = {"load": planned.text, "server": server.name, "warmed": how.is_warmed}
            found = runs[0] if len(runs) == 1 else {**median_of(runs), "runs": runs}
            results.add({**row, "objective": asdict(how.objective), **found})


async def run(
    load: UserLoad | Rate, connector: Connector, seed: int, objective: Objective
) -> dict[str, Any]:
    """Run one load once; with it comes this program's share of one core, to tell who was slow."""
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
