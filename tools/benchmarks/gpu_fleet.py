"""`harmonium serve` as it is on all GPUs of this machine, under loads of several client processes.

    python -m tools.benchmarks.gpu_fleet [--model 20b|120b] [--clients N] [--json FILE] LOAD ...

Writes a random checkpoint of the true shape, unless --folder has one, and starts the server with
nothing set but the model. A load is one of `harmonium bench --load`; each client brings it with
prompts of its own, at the same time, and the figures are of all of them. CPU: cores that the API
workers, the engines and the parent used, while each load ran.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import psutil
import torch
import uvloop

from engines.native.backends.cuda.offline.published import gpt_oss
from parts.terminal.bench.exchange import Connector, TimedAnswer, parse
from parts.terminal.bench.figures import Objective, group_figures
from parts.terminal.bench.loads import planned
from parts.terminal.bench.run import server_of
from parts.terminal.bench.search import Rate
from tools.benchmarks.published import write_published
from tools.benchmarks.startup import free_port, is_ready

_PATIENCE_S: Final = 300.0
_KINDS: Final = {"service.run.worker": "workers", "engines.process.host": "engines"}

Side = tuple[float, float, dict[str, list[TimedAnswer]]]  # began, ended, answers by group


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("loads", nargs="+", metavar="LOAD")
    parser.add_argument("--model", choices=["20b", "120b"], default="20b")
    parser.add_argument("--folder", type=Path, help="for the checkpoint and the cache; kept")
    parser.add_argument("--clients", type=int, default=torch.cuda.device_count())
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="harmonium-fleet-"))
    model = folder / arguments.model
    if not (model / "config.json").exists():
        write_published(model, gpt_oss(arguments.model), torch.device("cuda"))
        torch.cuda.empty_cache()
    found: dict[str, Any] = {
        "gpus": [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())],
        "torch": torch.__version__,
        "cpus": os.cpu_count(),
        "model": arguments.model,
        "clients": arguments.clients,
        "environment": {k: v for k, v in os.environ.items() if k.startswith("NIM_")},
        "loads": {},
    }
    port, began = free_port(), time.perf_counter()
    environment = os.environ | {
        "NIM_AUTH": "off",
        "NIM_CACHE_PATH": str(folder / "cache"),
        "NIM_MODEL_NAME": f"gpt-oss-{arguments.model}",
        "NIM_MODEL_PATH": str(model),
        "NIM_SERVER_PORT": str(port),
    }
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "service", "serve"], env=environment, stdout=log, stderr=log
        )
    try:
        while not is_ready(port):
            if server.poll() is not None or time.perf_counter() - began > _PATIENCE_S:
                raise SystemExit((folder / "log").read_text()[-3000:])
            time.sleep(0.1)
        found["ready_s"] = round(time.perf_counter() - began, 1)
        found["workers"] = [
            line.partition("API workers")[2]
            for line in (folder / "log").read_text().splitlines()
            if "API workers" in line
        ]
        print("ready", found["ready_s"], found["workers"], flush=True)
        with ProcessPoolExecutor(arguments.clients, get_context("spawn")) as clients:
            for text in arguments.loads * arguments.repeats:
                figures = _of_all(clients, arguments.clients, text, port, server.pid)
                found["loads"].setdefault(text, []).append(figures)
                print(text, json.dumps(figures), flush=True)
                if arguments.json:
                    arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(60)


def _of_all(
    clients: ProcessPoolExecutor, num: int, text: str, port: int, parent: int
) -> dict[str, Any]:
    start_at, seed = time.time() + 2.0, time.monotonic_ns() // 1000
    sides = [clients.submit(_bring, text, num, port, seed + n, start_at) for n in range(num)]
    time.sleep(max(0.0, start_at - time.time()))
    before, began = _cpu(parent), time.perf_counter()
    answers = [side.result(timeout=300) for side in sides]
    used, lasted = _cpu(parent), time.perf_counter() - began
    seconds = max(side[1] for side in answers) - min(side[0] for side in answers)
    groups: dict[str, list[TimedAnswer]] = {}
    for _, _, by_group in answers:
        for name, of in by_group.items():
            groups.setdefault(name, []).extend(of)
    return {
        "seconds": round(seconds, 2),
        "tokens_per_s_by_time_per_token": round(sum(_rate(side) for side in answers)),
        "cores_used": {kind: round((used[kind] - before[kind]) / lasted, 2) for kind in used},
        "groups": {name: group_figures(of, seconds, Objective()) for name, of in groups.items()},
    }


def _rate(side: Side) -> float:
    """Streams over the median time of a token."""
    times = [s for of in side[2].values() for answer in of if (s := answer.s_per_token)]
    return len(times) / statistics.median(times) if times else 0.0


def _cpu(parent: int) -> dict[str, float]:
    """Seconds of CPU so far, by what the process is."""
    found = {"workers": 0.0, "engines": 0.0, "parent": 0.0}
    process = psutil.Process(parent)
    for each in (process, *process.children(recursive=True)):
        line = " ".join(each.cmdline())
        kind = next((kind for module, kind in _KINDS.items() if module in line), None)
        kind = kind or ("parent" if each.pid == parent else None)
        if kind is not None:
            times = each.cpu_times()
            found[kind] += times.user + times.system
    return found


def _bring(text: str, num: int, port: int, seed: int, start_at: float) -> Side:
    """In a process of its own: one client's part of a load."""
    name, _, rest = text.partition("=")
    first, *others = rest.split(",")
    part = float(first) / num
    first = f"{part:g}" if name == "poisson" else str(int(part))
    load = planned(f"{name}={','.join((first, *others))}").load
    assert not isinstance(load, Rate)
    server = server_of(f"http://127.0.0.1:{port}", None, None, is_in_tokens=True)

    async def run() -> Side:
        await asyncio.sleep(max(0.0, start_at - time.time()))
        traffic = await load.run(Connector(server), seed)
        groups: dict[str, list[TimedAnswer]] = {
            group: [parse(each) for each in of] for group, of in traffic.groups.items()
        }
        return traffic.began_at, traffic.ended_at, groups

    return uvloop.run(run())


if __name__ == "__main__":
    main()
