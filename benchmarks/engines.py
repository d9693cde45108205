"""One load over several engines: the same checkpoint, prompts and limits, each as a profile has it.

    python -m benchmarks.engines native vllm=/opt/vllm/bin/python llama_cpp=build/llama/bin/python

An engine is named with the Python that has it, if that is another. All read nano (or
`--checkpoint`) in float32, each behind its own engine process, as the server has them; llama.cpp
reads a GGUF file written from it. Prompts are random and all different: no prefix is cached.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.report import median
from engines.base import Engine, EngineRequest, SamplingParams
from engines.factory import environment_of
from engines.process.supervisor import EngineSupervisor
from engines.spec import EngineSpec

REPEATS: Final = 3
LIMITS: Final = {"max_model_len": 2048, "max_num_seqs": 16, "max_num_batched_tokens": 512}
OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "native": {"dtype": "float32"},
    "vllm": {"enforce_eager": True, "kv_cache_memory_bytes": 512 * 1024**2},
    "llama_cpp": {},
}
# name: streams, tokens of each prompt, tokens of each answer
LOADS: Final = {
    "1 stream, 128 in, 128 out": (1, 128, 128),
    "8 streams, 128 in, 128 out": (8, 128, 128),
    "1 prompt of 1,024, 1 out": (1, 1024, 1),
}


@dataclass(frozen=True, slots=True)
class Side:
    """An engine and the Python that runs it."""

    engine: str
    python: Path | None

    @classmethod
    def parse(cls, text: str) -> Side:
        engine, _, python = text.partition("=")
        if engine not in OPTIONS:
            raise argparse.ArgumentTypeError(f"{engine!r} is none of {', '.join(OPTIONS)}")
        return cls(engine, Path(python).absolute() if python else None)


def main() -> None:
    """Measure one engine after another; print the table and the JSON line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engines", description=__doc__)
    parser.add_argument("sides", nargs="+", type=Side.parse, metavar="ENGINE[=PYTHON]")
    parser.add_argument("--checkpoint", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = arguments.checkpoint or _nano(Path(folder))
        found = {s.engine: asyncio.run(_measure(s, checkpoint)) for s in arguments.sides}
    _show(found)


async def _measure(side: Side, checkpoint: Path) -> dict[str, Any]:
    began_s = time.monotonic()
    async with _running(side, checkpoint) as engine:
        found: dict[str, Any] = {
            "version": engine.info.version,
            "ready_s": time.monotonic() - began_s,
        }
        await _run(engine, 4, 64, 8, seed=0)  # what is made at the first use is made
        for name, load in LOADS.items():
            rates = [await _run(engine, *load, seed=seed) for seed in range(1, REPEATS + 1)]
            found[name] = median(rates)
    return found


async def _run(
    engine: Engine, num_streams: int, num_prompt: int, num_tokens: int, seed: int
) -> float:
    """Tokens a second of all streams, from the first on; where one is asked for, of the prompt."""
    draw = random.Random(f"{seed} {num_streams} {num_prompt}")
    first_s: list[float] = []

    async def read(number: int) -> None:
        prompt = tuple(draw.randrange(1000, 20_000) for _ in range(num_prompt))
        sampling = SamplingParams(num_tokens, temperature=0.0)
        request = EngineRequest(f"{seed}-{number}", prompt, sampling)
        num_read = 0
        async for event in engine.generate(request):
            if not num_read:
                first_s.append(time.monotonic())
            num_read += len(event.token_ids)
        assert num_read == num_tokens, f"{num_read} of {num_tokens} tokens"

    began_s = time.monotonic()
    await asyncio.gather(*(read(number) for number in range(num_streams)))
    if num_tokens == 1:
        return num_streams * num_prompt / (max(first_s) - began_s)
    return num_streams * (num_tokens - 1) / (time.monotonic() - min(first_s))


@asynccontextmanager
async def _running(side: Side, checkpoint: Path) -> AsyncIterator[Engine]:
    spec = EngineSpec(side.engine, OPTIONS[side.engine], LIMITS, str(checkpoint))
    if side.engine == "llama_cpp":
        spec = replace(spec, model_dir=str(_gguf(side, checkpoint)))
    elif side.engine == "vllm":
        spec = replace(spec, precision="fp32", kv_dtype="fp32")
    environment = {**os.environ, **environment_of(side.engine)}
    supervisor = EngineSupervisor(spec, environment=environment, python=side.python)
    await supervisor.start()
    client = supervisor.client()
    try:
        await client.start()
        yield client
    finally:
        await client.stop()
        await supervisor.stop()


def _nano(folder: Path) -> Path:
    from profiles import catalogue, store

    profile = next(p for p in catalogue.load().profiles if p.model.name == "nano")
    return store.resolve(profile, folder)


def _gguf(side: Side, checkpoint: Path) -> Path:
    """Beside the checkpoint, by the writer of the tests of llama.cpp."""
    path = checkpoint.with_name(f"{checkpoint.name}-gguf") / "model.gguf"
    path.parent.mkdir(exist_ok=True)
    write = (
        "import sys; from pathlib import Path; "
        "from tests.engines.llama_cpp.gguf_file import write_gguf; "
        "write_gguf(Path(sys.argv[1]), Path(sys.argv[2]))"
    )
    command = [str(side.python or sys.executable), "-c", write, str(checkpoint), str(path)]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[1])
    return path.parent


def _show(found: dict[str, dict[str, Any]]) -> None:
    rows = [["", *(f"{engine} {figures['version']}" for engine, figures in found.items())]]
    for name in LOADS:
        rows.append([f"{name}, tok/s", *(f"{figures[name]:,.0f}" for figures in found.values())])
    rows.append(["ready after, s", *(f"{figures['ready_s']:.1f}" for figures in found.values())])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)))
    machine = {"machine": platform.processor() or platform.machine(), "cpus": os.cpu_count()}
    print(json.dumps({**machine, "python": platform.python_version(), "engines": found}))


if __name__ == "__main__":
    main()
