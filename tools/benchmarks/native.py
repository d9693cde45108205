"""Ours: the native engine through its public contract, in process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, cast

from engines.base import EngineRequest, SamplingParams
from engines.native.config import NativeConfig
from engines.native.engine import NativeEngine
from tools.benchmarks.workload import Job


class NativeRunner:
    """Runs jobs as concurrent requests; the prefix cache is off so that no prompt is free."""

    def __init__(self, checkpoint: Path, dtype: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._engine = NativeEngine(
            NativeConfig(
                model_dir=checkpoint,
                dtype=cast(Literal["float32", "bfloat16"], dtype),
                max_model_len=4096,
                max_num_seqs=32,
                enable_prefix_caching=False,
            )
        )
        self._loop.run_until_complete(self._engine.start())

    def run(self, jobs: Sequence[Job]) -> float:
        """Generate all jobs concurrently and return the seconds it took."""
        return self._loop.run_until_complete(self._run(jobs))

    async def _run(self, jobs: Sequence[Job]) -> float:
        started = time.perf_counter()
        await asyncio.gather(*(self._one(number, job) for number, job in enumerate(jobs)))
        return time.perf_counter() - started

    async def _one(self, number: int, job: Job) -> None:
        request = EngineRequest(
            request_id=f"bench-{time.monotonic_ns()}-{number}",
            prompt_token_ids=job.prompt,
            sampling=SamplingParams(max_tokens=job.num_tokens, temperature=0.0),
        )
        num_tokens = 0
        async for event in self._engine.generate(request):
            num_tokens += len(event.token_ids)
        if num_tokens != job.num_tokens:
            raise RuntimeError(f"wanted {job.num_tokens} tokens, got {num_tokens}")
