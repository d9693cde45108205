"""What a token costs on its way from the engine to its client: CPU beside a step of a given length.

    python -m benchmarks.host_path [--peer FOLDER] [--streams 256] [--step-ms 3]

A scripted engine in its process gives every stream a token each step; one client reads them all.
`host` is the CPU of the engine process less what the script itself computes, `client` that of the
reader. `--peer`: the root of another checkout of this project, measured in turn with this one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from contextlib import aclosing
from pathlib import Path

import psutil

WARM_UP_S = 1.0
MEASURED_S = 4.0
REPEATS = 5
_SCRIPT = list(range(1000, 1400))


def main() -> None:
    """Measure this checkout and its peer in turn; print the table and the JSON line."""
    arguments = _arguments()
    if arguments.once:
        print(json.dumps(asyncio.run(_once(arguments.streams, arguments.step_ms / 1000))))
        return
    from benchmarks.report import Row, median, show

    sides = [Path(__file__).parents[1], *([arguments.peer] if arguments.peer else [])]
    runs = [[_run(side, arguments) for side in sides] for _ in range(REPEATS)]
    rows = []
    for name in ("host", "script", "client"):
        ours, *peers = (median([run[i][name] for run in runs]) for i in range(len(sides)))
        peer = peers[0] if peers else None
        note = f"{arguments.streams} streams, {arguments.step_ms:g} ms a step"
        rows.append(Row(name, ours, "us of CPU a token", peer, note=note))
    pace = median([run[0]["tokens_s"] for run in runs])
    peer_pace = median([run[1]["tokens_s"] for run in runs]) if arguments.peer else None
    rows.append(Row("pace", pace, "tok/s", peer_pace, arguments.streams / arguments.step_ms * 1e3))
    show(rows)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.host_path", description=__doc__)
    parser.add_argument("--peer", type=Path)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--step-ms", type=float, default=3.0)
    parser.add_argument("--once", action="store_true", help="what a side runs")
    return parser.parse_args()


def _run(root: Path, arguments: argparse.Namespace) -> dict[str, float]:
    """One measurement by the code below that folder, whichever release it is of."""
    options = ("--streams", str(arguments.streams), "--step-ms", str(arguments.step_ms))
    command = (sys.executable, "-P", str(Path(__file__).resolve()), "--once", *options)
    environment = {**os.environ, "PYTHONPATH": str(root.resolve())}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


async def _once(num_streams: int, step_s: float) -> dict[str, float]:
    from engines.base import EngineRequest, SamplingParams
    from engines.process.supervisor import EngineSupervisor
    from engines.spec import EngineSpec

    options = {"script": _SCRIPT, "step_s": step_s, "max_num_seqs": num_streams}
    supervisor = EngineSupervisor(EngineSpec("fake", options))
    await supervisor.start()
    assert supervisor.pid is not None
    client = supervisor.client()
    await client.start()
    num_read = 0

    async def read(number: int) -> None:
        nonlocal num_read
        request = EngineRequest(f"r{number}", (1, 2, 3), SamplingParams(100_000))
        async with aclosing(client.generate(request)) as events:
            async for event in events:
                num_read += len(event.token_ids)

    readers = [asyncio.create_task(read(number)) for number in range(num_streams)]
    host, reader = psutil.Process(supervisor.pid), psutil.Process()
    await asyncio.sleep(WARM_UP_S)
    before = (time.monotonic(), _cpu_s(host), _cpu_s(reader), num_read)
    await asyncio.sleep(MEASURED_S)
    after = (time.monotonic(), _cpu_s(host), _cpu_s(reader), num_read)
    for task in readers:
        task.cancel()
    await asyncio.wait(readers)
    await client.stop()
    await supervisor.stop()
    seconds, host_s, client_s, num_tokens = (b - a for a, b in zip(before, after, strict=True))
    script_us = _script_us()
    return {
        "host": host_s / num_tokens * 1e6 - script_us,
        "script": script_us,
        "client": client_s / num_tokens * 1e6,
        "tokens_s": num_tokens / seconds,
    }


def _script_us() -> float:
    """What the scripted engine computes for a token, wherever it goes."""
    from engines.base import EngineRequest, SamplingParams
    from engines.fake.sequence import FakeOptions, FakeSequence

    request = EngineRequest("r", (1, 2, 3), SamplingParams(100_000))
    options = FakeOptions(script=tuple(_SCRIPT))
    sequence = FakeSequence(request, options.script)
    began_s = time.process_time()
    for _ in range(50_000):
        sequence.advance(1, options)
    return (time.process_time() - began_s) / 50_000 * 1e6


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


if __name__ == "__main__":
    main()
