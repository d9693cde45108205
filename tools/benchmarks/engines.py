"""One load over several engines: the same checkpoint, prompts and limits, in turn.

    python -m tools.benchmarks.engines native vllm=VLLM/bin/python llama_cpp=LLAMA/bin/python
    python -m tools.benchmarks.engines --checkpoint wide --dtype bfloat16 native vllm=PYTHON

An engine is named with the Python that has it, if that is another; the first named is what the
others are divided by. Each runs behind its own engine process, as the server has them, and waits
while another is measured. All read nano, `wide` (random: 4 layers, hidden 256, gpt-oss's
vocabulary) or a folder; llama.cpp reads a GGUF file written from it. Prompts are random and all
different: no prefix is cached.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, Final

import psutil
import torch

from engines.base import Engine
from engines.factory import about
from engines.process.supervisor import EngineSupervisor
from engines.spec import EngineSpec
from service.settings.settings import PATIENT_THREADS
from tools.benchmarks.checkpoint import write_random
from tools.benchmarks.engines_load import LIMITS, LOADS, WARM_UP, Load
from tools.benchmarks.engines_report import Found, show
from tools.benchmarks.limits import Machine, ModelBytes

_REPOSITORY: Final = Path(__file__).parents[2]
_PRECISIONS: Final = {"float32": "fp32", "bfloat16": "bf16"}
_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "native": {},
    "vllm": {"kv_cache_memory_bytes": 512 * 1024**2},
    "llama_cpp": {},
}


@dataclass(frozen=True, slots=True)
class Side:
    """An engine and the Python that runs it."""

    label: str
    engine: str
    python: Path

    @classmethod
    def parse(cls, text: str) -> Side:
        engine, _, python = text.partition("=")
        if engine not in _OPTIONS:
            raise argparse.ArgumentTypeError(f"{engine!r} is none of {', '.join(_OPTIONS)}")
        return cls(engine, engine, Path(python or sys.executable).absolute())

    def spec(self, checkpoint: Path, dtype: str) -> EngineSpec:
        """What this engine is asked to run; all compute and keep K/V in `dtype`."""
        spec = EngineSpec(self.engine, _OPTIONS[self.engine], LIMITS, str(checkpoint))
        if self.engine == "native":
            return replace(spec, options={"dtype": dtype})
        if self.engine == "vllm":
            precision = _PRECISIONS[dtype]
            return replace(spec, precision=precision, kv_dtype=precision)
        return replace(spec, model_dir=str(_gguf(self, checkpoint)))


@dataclass(frozen=True, slots=True)
class Running:
    """An engine that is ready, and what was found of it."""

    engine: Engine
    process: psutil.Process
    found: Found

    def cpu_s(self) -> float:
        """CPU time of the engine process and all below it since they began."""
        each = [self.process, *self.process.children(recursive=True)]
        return sum(t.user + t.system for t in (process.cpu_times() for process in each))


def main() -> None:
    """Measure the engines in turn; print the table and the JSON line."""
    parser = argparse.ArgumentParser(prog="python -m tools.benchmarks.engines", description=__doc__)
    parser.add_argument("sides", nargs="+", type=Side.parse, metavar="ENGINE[=PYTHON]")
    parser.add_argument("--checkpoint", default="nano", metavar="nano|wide|FOLDER")
    parser.add_argument("--dtype", choices=tuple(_PRECISIONS), default="float32")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--loads", nargs="+", choices=tuple(LOADS), default=tuple(LOADS))
    arguments = parser.parse_args()
    arguments.sides = _told_apart(arguments.sides)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = _checkpoint(arguments.checkpoint, Path(folder))
        dtype: torch.dtype = getattr(torch, arguments.dtype)
        machine, shape = Machine.measured(dtype), ModelBytes.of(checkpoint, dtype.itemsize)
        loads = {name: LOADS[name] for name in arguments.loads}
        os.chdir(folder)  # each Python runs what is installed in it
        found = asyncio.run(_measure(arguments, checkpoint, loads))
    show(f"{arguments.checkpoint}, {arguments.dtype}", found, loads, machine, shape)


def _told_apart(sides: list[Side]) -> list[Side]:
    """Number an engine that is measured more than once, in the order they were named."""
    numbers = {engine: count(1) for engine in _OPTIONS}
    repeated = {engine for engine, n in Counter(side.engine for side in sides).items() if n > 1}
    return [
        replace(side, label=f"{side.engine} {next(numbers[side.engine])}")
        if side.engine in repeated
        else side
        for side in sides
    ]


async def _measure(
    arguments: argparse.Namespace, checkpoint: Path, loads: dict[str, Load]
) -> list[Found]:
    """Start all; then one load after the other, by each in turn, `repeats` times."""
    async with AsyncExitStack() as stack:
        sides = [
            await stack.enter_async_context(_running(side, side.spec(checkpoint, arguments.dtype)))
            for side in arguments.sides
        ]
        for running in sides:
            for load in (WARM_UP, *loads.values()):  # what is made at the first use is made
                await load.shortened().run(running.engine, seed=0)
        for seed in range(1, arguments.repeats + 1):
            for name, load in loads.items():
                for running in sides:
                    before_s = running.cpu_s()
                    reading = await load.run(running.engine, seed)
                    reading = replace(reading, cpu_s=running.cpu_s() - before_s)
                    running.found.readings.setdefault(name, []).append(reading)
                    print(f"{name}: {running.found.label}: {reading}", file=sys.stderr)
        return [running.found for running in sides]


@asynccontextmanager
async def _running(side: Side, spec: EngineSpec) -> AsyncIterator[Running]:
    # Ours with the environment that the server gives it; the others as they come.
    own = PATIENT_THREADS if side.engine == "native" else about(side.engine).environment
    began_s = time.monotonic()
    supervisor = EngineSupervisor(spec, environment={**os.environ, **own}, python=side.python)
    await supervisor.start()
    client = supervisor.client()
    try:
        await client.start()
        process = psutil.Process(supervisor.pid)
        found = Found(side.label, client.info.version, time.monotonic() - began_s)
        yield Running(client, process, found)
    finally:
        await client.stop()
        await supervisor.stop()


def _checkpoint(name: str, folder: Path) -> Path:
    if name == "wide":
        return write_random(folder / "wide", hidden=256, num_layers=4, num_experts=8)
    if name != "nano":
        return Path(name).absolute()
    from profiles.checkpoints.compact import bundled_nano, expand

    expand(bundled_nano(), folder / "nano")
    return folder / "nano"


def _gguf(side: Side, checkpoint: Path) -> Path:
    """Beside the checkpoint, by the writer of the tests of llama.cpp."""
    path = checkpoint.with_name(f"{checkpoint.name}-gguf") / "model.gguf"
    path.parent.mkdir(exist_ok=True)
    write = (
        "import sys; from pathlib import Path; "
        "from tests.engines.llama_cpp.gguf_file import write_gguf; "
        "write_gguf(Path(sys.argv[1]), Path(sys.argv[2]))"
    )
    command = [str(side.python), "-c", write, str(checkpoint), str(path)]
    subprocess.run(command, check=True, cwd=_REPOSITORY)
    return path.parent


if __name__ == "__main__":
    main()
