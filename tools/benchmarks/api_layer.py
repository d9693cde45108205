"""The API layer alone: HTTP, Harmony parsing and events, over a scripted engine.

As it is served: API workers (service/run) and an engine in a process of its own. Each
stream is reasoning and then a tool call. The worker has core 0; the engine and the client have
core 1. How it grows with the cores is seen on the whole: all of it on one core with one worker,
then all of it on two cores with two.

Two loads: a flood, from an engine that waits for nothing, and paced, from one that gives every
stream a token in each step, all in the same instant, as a batch does. The delay of a token is
the time from the engine's emitting it to the client's reading it, while all streams ran; a
server that only writes prepared bytes is measured the same way and subtracted.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import uvloop

from service.run.messages import ApiWorkerSpec, EngineNews
from service.run.pool import WorkerPool
from service.run.startup import prepare
from service.settings.settings import load as load_settings
from tools.benchmarks.api_delays import Times, Visible, bare_delays_ms, chat_delays_ms, seconds
from tools.benchmarks.reader import read_streams
from tools.benchmarks.report import Row, median
from tools.benchmarks.scripted import TOOL, answer_ids

NUM_REPEATS = 15  # of the texts in an answer: about 600 tokens


@dataclass(frozen=True, slots=True)
class Load:
    """What the engine and the clients do."""

    num_streams: int
    tokens_per_s: float = 0.0  # of all streams together; 0 floods
    num_workers: int = 1
    num_engines: int = 1
    worker_cores: tuple[int, ...] = (0,)
    other_cores: tuple[int, ...] = (1,)  # of the engine and the client

    @property
    def step_s(self) -> float:
        return self.num_streams / self.tokens_per_s if self.tokens_per_s else 0.0


@dataclass(frozen=True, slots=True)
class Measured:
    """One run."""

    tokens_per_s: float
    chunks_per_s: float
    cpu_us_per_token: float  # of all workers; who else uses the machine hardly changes it
    delays_ms: list[float]


def rows(repeats: int) -> list[Row]:
    """Each load as often as `repeats` says; medians."""
    floods = [Load(1), Load(32), Load(256)]
    paced = [Load(256, tokens_per_s=20_000), Load(256, tokens_per_s=40_000)]
    return [
        *(_flood_row(load, [measure(load) for _ in range(repeats)]) for load in floods),
        _growth_row(repeats),
        *(
            _delay_row(load, [(measure(load), bare(load)) for _ in range(repeats)])
            for load in paced
        ),
    ]


def _growth_row(repeats: int) -> Row:
    """Workers, engine and client together on two cores beside the same on one."""
    one = Load(256, worker_cores=(0,), other_cores=(0,))
    two = Load(256, num_workers=2, worker_cores=(0, 1), other_cores=(0, 1))
    runs = [(measure(one), measure(two)) for _ in range(repeats)]
    return Row(
        case="API layer, engine and client on 2 cores, 2 workers, 256 streams",
        ours=median([run.tokens_per_s for _, run in runs]),
        peer=median([run.tokens_per_s for run, _ in runs]),
        unit="tok/s",
        note="peer: the same on 1 core, 1 worker",
    )


def _flood_row(load: Load, runs: Sequence[Measured]) -> Row:
    chunks = median([run.chunks_per_s for run in runs])
    return Row(
        case=f"API layer, 1 worker, {load.num_streams} streams",
        ours=median([run.tokens_per_s for run in runs]),
        unit="tok/s",
        target=">= 40,000",
        note=f"{chunks:,.0f} chunks/s, {_cpu_us(runs):.1f} us CPU a token",
    )


def _delay_row(load: Load, runs: Sequence[tuple[Measured, list[float]]]) -> Row:
    """The 99th percentile that we add; the rest in the note."""
    added = {
        percent: median(
            [_percentile(r.delays_ms, percent) - _percentile(b, percent) for r, b in runs]
        )
        for percent in (50, 99)
    }
    ours = [run for run, _ in runs]
    return Row(
        case=f"API layer, p99 added to a token, {load.num_streams} streams, "
        f"{load.tokens_per_s:,.0f} tok/s asked for",
        ours=added[99],
        unit="ms",
        target="< 5",
        note=f"p50 {added[50]:.1f} ms, {median([run.tokens_per_s for run in ours]):,.0f} tok/s in "
        f"{median([run.chunks_per_s for run in ours]):,.0f} chunks/s, "
        f"{_cpu_us(ours):.1f} us CPU a token",
    )


def _cpu_us(runs: Sequence[Measured]) -> float:
    return median([run.cpu_us_per_token for run in runs])


def _percentile(values: Sequence[float], percent: int) -> float:
    return statistics.quantiles(values, n=100)[percent - 1]


def measure(load: Load) -> Measured:
    """Run the load once, after a short one that warms up."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_measure(load))


def bare(load: Load) -> list[float]:
    """The delays in ms of a server that only writes: the same steps, the same client."""
    options = {"num_steps": len(answer_ids(NUM_REPEATS)), "step_s": load.step_s}
    with _program("tools.benchmarks.bare_loop", json.dumps(options), load.worker_cores) as server:
        assert server.stdout is not None
        os.sched_setaffinity(0, load.other_cores)
        readings = read_streams(int(server.stdout.readline()), load.num_streams, b"")
        return bare_delays_ms(readings, _stamps(server))


async def _measure(load: Load) -> Measured:
    with tempfile.TemporaryDirectory(prefix="bench") as folder:
        addresses = [f"ipc://{folder}/engine{n}.sock" for n in range(load.num_engines)]
        with ExitStack() as stack:
            engines = [stack.enter_context(_engine(address, load)) for address in addresses]
            async with _workers(addresses, Path(folder), load) as port:
                os.sched_setaffinity(0, load.other_cores)
                await asyncio.to_thread(read_streams, port, min(load.num_streams, 16), _body())
                for engine in engines:
                    _stamps(engine)
                cpu_s = _cpu_s()
                readings = await asyncio.to_thread(read_streams, port, load.num_streams, _body())
                cpu_s = _cpu_s() - cpu_s
                emitted = {key: times for each in engines for key, times in _stamps(each).items()}
    for reading in readings:
        if reading.request_id not in emitted:
            raise RuntimeError(f"a request was refused: {reading.data[:500]!r}")
    num_tokens = sum(len(times) for times in emitted.values())
    num_chunks = sum(len(reading.events()) for reading in readings)
    seconds_run = seconds(readings, emitted)
    return Measured(
        tokens_per_s=num_tokens / seconds_run,
        chunks_per_s=num_chunks / seconds_run,
        cpu_us_per_token=1e6 * cpu_s / num_tokens,
        delays_ms=chat_delays_ms(readings, emitted, Visible.of(NUM_REPEATS)),
    )


def _body() -> bytes:
    messages = [{"role": "user", "content": "Look it up."}]
    return json.dumps(
        {"model": "nano", "messages": messages, "tools": [TOOL], "stream": True}
    ).encode()


@contextmanager
def _engine(address: str, load: Load) -> Iterator[subprocess.Popen[str]]:
    options = {"num_repeats": NUM_REPEATS, "step_s": load.step_s, "max_num_seqs": 1024}
    with _program("tools.benchmarks.scripted", address, load.other_cores) as process:
        assert process.stdin is not None
        process.stdin.write(json.dumps(options) + "\n")
        process.stdin.flush()
        yield process


@contextmanager
def _program(module: str, argument: str, cores: Iterable[int]) -> Iterator[subprocess.Popen[str]]:
    all_cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)  # inherited
    process = subprocess.Popen(
        [sys.executable, "-m", module, argument],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
        os.sched_setaffinity(0, all_cores)


def _stamps(process: subprocess.Popen[str]) -> Times:
    """Ask a program when it emitted what it emitted since the last time it was asked."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    times: Times = json.loads(process.stdout.readline())
    return times


@asynccontextmanager
async def _workers(addresses: list[str], folder: Path, load: Load) -> AsyncIterator[int]:
    """Run real workers and give their port."""
    settings = load_settings(
        {
            "model_name": "nano",
            "cache_path": folder / "cache",
            "log_level": "WARNING",  # the access log is not what is measured
            "max_queue_wait_s": 3600,  # nor is who may wait
            "api_workers": load.num_workers,
        }
    )
    os.sched_setaffinity(0, load.worker_cores)
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        spec = ApiWorkerSpec(
            number=0,
            settings=settings,
            launch=prepare(settings),
            engine_addresses=tuple(addresses),
            listener_fd=listener.fileno(),
            shared_folder=folder if load.num_workers > 1 else None,
        )
        pool = WorkerPool(spec, load.num_workers, lambda: EngineNews((None,) * load.num_engines))
        try:
            await pool.start()
            yield listener.getsockname()[1]
        finally:
            await pool.kill()


def _cpu_s() -> float:
    """What the workers have used so far."""
    workers = (c for c in psutil.Process().children() if "service.run.worker" in c.cmdline())
    return sum(time.user + time.system for time in (w.cpu_times() for w in workers))
