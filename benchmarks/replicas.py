"""Engine processes on this machine's GPUs, one each, as `harmonium serve` starts them."""

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

from benchmarks.gpu_disk import spec_for
from engines.base import EngineRequest, SamplingParams
from engines.fleet import Fleet
from engines.process.client import EngineClient
from engines.process.supervisor import EngineSupervisor, RestartPolicy
from engines.recovery.guarded import GuardedEngine
from engines.recovery.suspects import Suspects

LIMITS: Final = {"max_model_len": 131072, "max_num_seqs": 256, "max_num_batched_tokens": 8192}
PROMPT: Final = 128  # tokens


def gpus() -> list[str]:
    """Return what names the GPUs to the engine processes, two at most."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return (named.split(",") if named else [str(i) for i in range(torch.cuda.device_count())])[:2]


class Replicas:
    """The engine processes, each on a GPU of its own."""

    def __init__(self) -> None:
        self.supervisors: list[EngineSupervisor] = []

    async def start(self, folder: Path, **options: Any) -> dict[str, Any]:
        """Start them side by side, with what `harmonium serve` would leave for the next start."""
        spec = spec_for(folder / "model", torch.device("cuda"), LIMITS)
        artefacts = str(folder / "cache" / "engines")
        spec = replace(spec, artefact_dir=artefacts, options={**spec.options, **options})
        began = time.perf_counter()
        for gpu in gpus():
            environment = {**os.environ, "CUDA_VISIBLE_DEVICES": gpu}
            policy = RestartPolicy(first_delay_s=0.05)
            self.supervisors.append(EngineSupervisor(spec, policy, environment))
        await asyncio.gather(*(supervisor.start() for supervisor in self.supervisors))
        return {"gpus": len(self.supervisors), "ready_s": round(time.perf_counter() - began, 1)}

    async def stop(self) -> None:
        """End the processes at once."""
        await asyncio.gather(*(s.stop(drain_timeout_s=0.0) for s in self.supervisors))


@asynccontextmanager
async def served(clients: list[EngineClient]) -> AsyncIterator[GuardedEngine]:
    """Yield the replicas as one engine, as an API process has them."""
    with tempfile.TemporaryDirectory() as folder:
        engine = GuardedEngine(Fleet(clients), Suspects(Path(folder) / "suspects", 600.0))
        await engine.start()
        try:
            yield engine
        finally:
            await engine.stop()


def request_of(name: str, prompt: Sequence[int], answer: int, seed: int) -> EngineRequest:
    """Make a request of `answer` tokens, drawn with a seed."""
    return EngineRequest(name, tuple(prompt), SamplingParams(answer, temperature=1.0, seed=seed))
