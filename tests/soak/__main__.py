"""`make soak`: mixed traffic and faults for ten minutes; nothing may grow, hang or leak.

Streams, cancels, bad bodies, tools, long prompts, slow readers and reconnects, while the
engine process is killed, stopped and (scripted engine) poisoned in turn. Every request must
be answered: whole, or with an error in the API's shape. The last line is one JSON document.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx2

from tests.soak.server import Sample, SoakServer
from tests.soak.traffic import FORGERIES, TIMEOUT_S, WORDS, Tally, poison, send_until
from tools.benchmarks.ending import end_as_by_ctrl_c

NUM_CLIENTS: Final = 12
SAMPLE_EVERY_S: Final = 5.0
FIRST_FAULT_S: Final = 15.0
FAULT_EVERY_S: Final = 62.0  # the back-off of restarts begins anew after a life of 60 s
MAX_GROWTH_MB: Final = 24.0  # of the server, from the second quarter to the last
MAX_GROWTH_FILES: Final = 6


@dataclass
class Soak:
    """What was seen."""

    tally: Tally = field(default_factory=Tally)
    samples: list[Sample] = field(default_factory=list)
    num_faults: int = 0

    def show_sample(self, sample: Sample) -> None:
        self.samples.append(sample)
        engine = "away" if sample.engine_mb is None else f"{sample.engine_mb:6.1f} MB"
        print(
            f"{sample.at_s:6.0f} s  server {sample.server_mb:6.1f} MB {sample.server_files:3d} "
            f"files  engine {engine}  requests {self.tally.outcomes.total()}, "
            f"unanswered {len(self.tally.unanswered)}, leaks {len(self.tally.leaks)}",
            flush=True,
        )


async def run(server: SoakServer, seconds: float, engine: str) -> Soak:
    """Let the clients send and do the faults; returns when the last answer has come."""
    soak, end = Soak(), asyncio.Event()
    words = (*WORDS, *FORGERIES) if engine == "scripted" else WORDS
    clients = [
        asyncio.create_task(send_until(end, server.url, seed, soak.tally, words))
        for seed in range(NUM_CLIENTS)
    ]
    others = [
        asyncio.create_task(_measure(server, soak)),
        asyncio.create_task(_do_faults(server, soak, engine)),
    ]
    await asyncio.sleep(seconds)
    end.set()
    others[1].cancel()
    await asyncio.gather(*clients)
    others[0].cancel()
    await asyncio.wait(others)
    return soak


async def _measure(server: SoakServer, soak: Soak) -> None:
    while True:
        soak.show_sample(await asyncio.to_thread(server.sample))
        await asyncio.sleep(SAMPLE_EVERY_S)


async def _do_faults(server: SoakServer, soak: Soak, engine: str) -> None:
    faults: list[tuple[str, Callable[[], Any]]] = [
        ("the engine is killed", lambda: server.hurt(signal.SIGKILL)),
        ("the engine is stopped", lambda: server.hurt(signal.SIGSTOP)),
    ]
    await asyncio.sleep(FIRST_FAULT_S)
    while True:
        for name, do in faults:
            print(f"          {name}", flush=True)
            soak.num_faults += 1
            await asyncio.to_thread(do)
            await asyncio.sleep(FAULT_EVERY_S)
        if engine == "scripted":
            print("          the engine is poisoned", flush=True)
            soak.num_faults += 1
            await _poison(server.url, soak.tally, soak.num_faults)
            await asyncio.sleep(FAULT_EVERY_S)


async def _poison(url: str, tally: Tally, number: int) -> None:
    """The same request thrice; only the first may do harm."""
    async with httpx2.AsyncClient(base_url=url, timeout=TIMEOUT_S) as client:
        for _ in range(3):
            try:
                await poison(client, tally, number)
            except httpx2.HTTPError as error:
                tally.unanswered.append(f"poison: {type(error).__name__}: {error}")


def growth(samples: Sequence[Sample], value: Callable[[Sample], float]) -> float:
    """From the median of the second quarter to the median of the last."""
    quarter = max(1, len(samples) // 4)
    before = statistics.median(value(sample) for sample in samples[quarter : 2 * quarter])
    return statistics.median(value(sample) for sample in samples[-quarter:]) - before


def figures(soak: Soak, server: SoakServer, ready_s: float) -> dict[str, Any]:
    """What the last line says."""
    tally, samples = soak.tally, soak.samples
    return {
        "requests": tally.outcomes.total() + len(tally.unanswered),
        "outcomes": dict(tally.outcomes.most_common()),
        "unanswered": len(tally.unanswered),
        "markup_leaks": len(tally.leaks),
        "faults": soak.num_faults,
        "engine_restarts": server.metric("harmonium_engine_restarts_total"),
        "ready_after_s": round(ready_s, 1),
        "running_at_the_end": server.metric("harmonium_engine_running_requests"),
        "waiting_at_the_end": server.metric("harmonium_engine_waiting_requests"),
        "kv_use_at_the_end": server.metric("harmonium_engine_kv_usage_ratio"),
        "server_mb": [round(samples[0].server_mb, 1), round(samples[-1].server_mb, 1)],
        "server_mb_growth": round(growth(samples, lambda s: s.server_mb), 1),
        "server_files": [samples[0].server_files, samples[-1].server_files],
        "server_files_growth": growth(samples, lambda s: s.server_files),
    }


def complaints(found: dict[str, Any]) -> list[str]:
    """What must not be, and was."""
    zero = ("unanswered", "markup_leaks", "running_at_the_end", "waiting_at_the_end", "exit_code")
    wrong = [f"{name} is {found[name]}" for name in zero if found[name] != 0]
    for name, limit in (("server_mb", MAX_GROWTH_MB), ("server_files", MAX_GROWTH_FILES)):
        if found[f"{name}_growth"] > limit:
            wrong.append(f"{name} grew by {found[f'{name}_growth']}")
    return wrong


def main() -> int:
    """Soak, print the figures, and fail if anything was not as it must be."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--engine", choices=("scripted", "nano"), default="scripted")
    arguments = parser.parse_args()
    end_as_by_ctrl_c()
    with tempfile.TemporaryDirectory() as folder:
        server = SoakServer(arguments.engine, Path(folder))
        try:
            server.wait_for_ready()
            soak = asyncio.run(run(server, arguments.seconds, arguments.engine))
            ready_s = server.wait_for_ready()
            server.wait_for_idle()
            found = figures(soak, server, ready_s)
        finally:
            exit_code = server.stop()
    found |= {"engine": arguments.engine, "seconds": arguments.seconds, "exit_code": exit_code}
    for line in [*soak.tally.unanswered[:10], *soak.tally.leaks[:10], *complaints(found)]:
        print(f"WRONG: {line}")
    print(json.dumps(found))
    return 1 if complaints(found) else 0


if __name__ == "__main__":
    sys.exit(main())
