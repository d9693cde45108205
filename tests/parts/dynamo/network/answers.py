"""Answers of an engine through fronts, and the deaths of workers."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field
from typing import Any, Final

from engines.base import EngineRequest, SamplingParams
from engines.process.client import EngineClient
from parts.dynamo.network.supervisor import WorkerSupervisor
from tests.parts.dynamo.network.deployment import (
    SCRIPT,
)

POISON: Final = 666
PROMPT: Final = tuple(range(100, 120))


@dataclass
class Answer:
    """What was shown of an answer, and how much of it before each restart."""

    ids: tuple[int, ...] = ()
    cuts: list[int] = field(default_factory=list)


async def read(engine: Any, request: EngineRequest, seen: list[int] | None = None) -> Answer:
    """Read an answer; `seen` is appended its tokens as they come."""
    answer, num_restarts = Answer(), 0
    async for event in engine.generate(request):
        if event.num_restarts > num_restarts:
            num_restarts = event.num_restarts
            answer.cuts.append(len(answer.ids))
        answer.ids += event.token_ids
        if seen is not None:
            seen += event.token_ids
    return answer


def request_of(max_tokens: int = 100, prompt: tuple[int, ...] = PROMPT, **more: Any) -> Any:
    sampling = SamplingParams(max_tokens, **{"temperature": 0.0, **more})
    return EngineRequest(f"r{max_tokens}", prompt, sampling)


def script(num: int) -> tuple[int, ...]:
    return tuple(SCRIPT[i % len(SCRIPT)] for i in range(num))


def kill(worker: WorkerSupervisor) -> None:
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)


async def running_at(worker: WorkerSupervisor) -> EngineClient:
    """A client of a worker's engine, to see what it runs."""
    client = worker.engine.client()
    await client.start()
    return client
