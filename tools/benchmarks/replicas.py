"""Engine processes on this machine's GPUs as `harmonium serve` starts them."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch

from engines.base import EngineRequest, SamplingParams
from engines.fleet import Fleet
from engines.native.backends.cuda.offline.published import gpt_oss
from engines.process.client import EngineClient
from engines.process.supervisor import EngineSupervisor, RestartPolicy
from engines.recovery.crash_records import CrashRecords
from engines.recovery.guarded import GuardedEngine
from tools.benchmarks.gpu_disk import spec_for, write_vocabulary
from tools.benchmarks.published import write_published

LIMITS: Final = {"max_model_len": 131072, "max_num_seqs": 256, "max_num_batched_tokens": 8192}
PROMPT: Final = 128  # tokens


def gpus() -> list[str]:
    """Return what names the GPUs to the engine processes, two at most."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return (named.split(",") if named else [str(i) for i in range(torch.cuda.device_count())])[:2]


class Replicas:
    """The engine processes, each on the GPU that is named for it."""

    def __init__(self, on: Sequence[str] | None = None, memory_fraction: float = 0.9) -> None:
        """`on`: a GPU for each engine; None: one engine on each there is."""
        self.supervisors: list[EngineSupervisor] = []
        self._gpus, self._memory_fraction = gpus() if on is None else on, memory_fraction

    async def start(self, folder: Path, **options: Any) -> dict[str, Any]:
        """Start them side by side, with what `harmonium serve` would leave for the next start."""
        spec = spec_for(folder / "model", torch.device("cuda"), LIMITS)
        artefacts = str(folder / "cache" / "engines")
        spec = replace(
            spec,
            artefact_dir=artefacts,
            options={**spec.options, **options},
            memory_fraction=self._memory_fraction,
        )
        began = time.perf_counter()
        for gpu in self._gpus:
            environment = {**os.environ, "CUDA_VISIBLE_DEVICES": gpu}
            policy = RestartPolicy(first_delay_s=0.05)
            self.supervisors.append(EngineSupervisor(spec, policy, environment))
        await asyncio.gather(*(supervisor.start() for supervisor in self.supervisors))
        return {"engines": len(self.supervisors), "ready_s": round(time.perf_counter() - began, 1)}

    async def stop(self) -> None:
        """End the processes at once."""
        await asyncio.gather(*(s.stop(drain_timeout_s=0.0) for s in self.supervisors))


async def written(folder: Path, model: str) -> dict[str, Any]:
    """Write a random checkpoint of the true shape to `folder`/model where there is none."""
    config, place = gpt_oss(model), folder / "model"
    began = time.perf_counter()
    if not (place / "config.json").exists():
        write_published(place, config, torch.device("cuda"))
        write_vocabulary(place / "vocabulary.tiktoken", config.vocab_size)
        torch.cuda.empty_cache()
    return {"s": round(time.perf_counter() - began, 1)}


@asynccontextmanager
async def served(clients: list[EngineClient]) -> AsyncIterator[GuardedEngine]:
    """Yield the replicas as one engine, as an API process has them."""
    with tempfile.TemporaryDirectory() as folder:
        engine = GuardedEngine(Fleet(clients), CrashRecords(Path(folder) / "suspects", 600.0))
        await engine.start()
        try:
            yield engine
        finally:
            await engine.stop()


def request_of(name: str, prompt: Sequence[int], answer: int, seed: int) -> EngineRequest:
    """Make a request of `answer` tokens, drawn with a seed."""
    return EngineRequest(name, tuple(prompt), SamplingParams(answer, temperature=1.0, seed=seed))
