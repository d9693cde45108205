"""`make bench-dynamo`: what the way through Dynamo costs, beside our own engine process alone.

The same engine answers over its own socket, and as the only worker of a front (front process,
Dynamo's TCP, worker process, engine process). One engine is scripted: flat out, which measures the
way alone, and paced; the other is nano. Each load runs on both ways in turn, `ROUNDS` times, and
the figures are medians. The load of the machine is part of the output. File discovery, loopback.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from engines.base import Engine, EngineRequest, SamplingParams
from engines.process.supervisor import EngineSupervisor, RestartPolicy
from engines.spec import EngineSpec
from profiles.checkpoints.compact import bundled_nano, expand
from tests.engines.dynamo.deployment import deployment
from tools.benchmarks.ending import end_as_by_ctrl_c
from tools.benchmarks.report import Row, median, show

ROUNDS: Final = 5
PROMPT: Final = 64  # tokens
FLAT_OUT: Final = 30_000  # tok/s through one worker


@dataclass(frozen=True, slots=True)
class Load:
    """So many streams at once, each of so many tokens."""

    streams: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Reading:
    """One run of a load."""

    tok_s: float
    first_ms: float  # until a first token, median of the streams
    cpu_us: float  # of all processes of the way, its client included, for each token


def scripted(step_s: float) -> EngineSpec:
    options = {"script": list(range(1000, 1400)), "step_s": step_s}
    return EngineSpec("fake", options, {"max_model_len": 8192, "max_num_seqs": 64})


def nano(checkpoint: Path) -> EngineSpec:
    limits = {"max_model_len": 4096, "max_num_seqs": 32}
    return EngineSpec("native", {"num_threads": 1}, limits, str(checkpoint))


async def read(engine: Engine, number: int, load: Load) -> float:
    """Read one answer; return the seconds until its first token."""
    prompt = tuple(2000 + (number * 131 + i * 17) % 5000 for i in range(PROMPT))
    sampling = SamplingParams(load.tokens, temperature=0.0)
    begun_s, first_s, num_read = time.monotonic(), 0.0, 0
    request = EngineRequest(f"{time.monotonic_ns()}-{number}", prompt, sampling)
    async for event in engine.generate(request):
        first_s = first_s or time.monotonic() - begun_s
        num_read += len(event.token_ids)
    assert num_read == load.tokens, f"{num_read} of {load.tokens} tokens"
    return first_s


async def run(engine: Engine, load: Load, pids: Sequence[int]) -> Reading:
    processes = [psutil.Process(), *(psutil.Process(pid) for pid in pids)]
    cpu_s, begun_s = _cpu_s(processes), time.monotonic()
    firsts = await asyncio.gather(*(read(engine, i, load) for i in range(load.streams)))
    seconds, cpu_s = time.monotonic() - begun_s, _cpu_s(processes) - cpu_s
    num_tokens = load.streams * load.tokens
    return Reading(num_tokens / seconds, 1000 * median(firsts), 1e6 * cpu_s / num_tokens)


def _cpu_s(processes: Sequence[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


async def measure(name: str, spec: EngineSpec, loads: Sequence[Load], target: str) -> list[Row]:
    """Both ways to one engine of its kind, in turn."""
    async with AsyncExitStack() as stack:
        deployed = await stack.enter_async_context(deployment())
        own = EngineSupervisor(spec, RestartPolicy(), dict(os.environ))
        await own.start()
        stack.push_async_callback(own.stop)
        alone = own.client()
        await alone.start()
        stack.push_async_callback(alone.stop)
        before = _children()
        await deployed.worker(spec)
        front = await deployed.front()
        pids = {id(alone): [own.pid or 0], id(front): sorted(_children() - before)}
        rows = []
        for load in loads:
            for engine in (alone, front):
                await run(engine, Load(2, 8), ())
            pairs = [
                [await run(engine, load, pids[id(engine)]) for engine in (front, alone)]
                for _ in range(ROUNDS)
            ]
            rows += _rows(f"{name}, {load.streams} x {load.tokens}", pairs, target)
        return rows


def _children() -> set[int]:
    return {process.pid for process in psutil.Process().children(recursive=True)}


def _rows(case: str, pairs: Sequence[Sequence[Reading]], target: str) -> list[Row]:
    through, alone = ([pair[i] for pair in pairs] for i in range(2))
    rates = sorted(reading.tok_s for reading in through)
    note = f"{rates[0]:,.0f} to {rates[-1]:,.0f}; machine's load {os.getloadavg()[0]:.1f}"
    found = []
    for what, unit, bar in (
        ("tok_s", "tok/s", target),
        ("first_ms", "ms to a first token", ""),
        ("cpu_us", "CPU µs a token", ""),
    ):
        ours, peer = (median([getattr(r, what) for r in side]) for side in (through, alone))
        found.append(Row(case, ours, unit, peer, target=bar, note=note if bar else ""))
    return found


async def main() -> None:
    """Measure and print; `ours` is through Dynamo, `peer` our engine process alone."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as scratch:
        expand(bundled_nano(), checkpoint := Path(scratch) / "nano")
        flat, paced = [Load(32, 4000), Load(1, 4000)], [Load(32, 100), Load(1, 100)]
        rows += await measure("scripted, flat out", scripted(0.0), flat, f">= {FLAT_OUT:,}")
        rows += await measure("scripted, 50 steps/s", scripted(0.02), paced, "as alone")
        rows += await measure("nano", nano(checkpoint), [Load(8, 64), Load(1, 64)], "as alone")
    show(rows)


if __name__ == "__main__":
    import uvloop

    end_as_by_ctrl_c()
    uvloop.run(main())
