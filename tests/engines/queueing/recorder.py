"""A queue before a runner that runs nothing, and the time that it sees."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from engines.base import (
    EngineInfo,
    EngineRequest,
    EngineStats,
    FinishReason,
    Outcome,
    Receive,
    SamplingParams,
    TokenEvent,
)
from engines.queueing import admission, fair_queue
from engines.queueing.admission import QueuedEngine
from engines.queueing.fair_queue import Entry

BUDGET = 100  # tokens of a step


class Recorder:
    """A runner that runs nothing: the test says what it gives."""

    def __init__(self, max_num_seqs: int = 8, num_step_tokens: int = BUDGET) -> None:
        self.info = EngineInfo("recorder", "1", 10_000, 1000, max_num_seqs, num_step_tokens)
        self.begun: list[str] = []
        self.aborted: list[str] = []
        self.receive: dict[str, Receive] = {}
        self.may_prepare = asyncio.Event()
        self.may_prepare.set()
        self.error: Exception | None = None
        self.cached: dict[str, int] = {}  # of prepared requests, where it is known

    async def start(self) -> None: ...

    async def prepare(self, request: EngineRequest) -> EngineRequest:
        await self.may_prepare.wait()
        return request

    def num_cached_tokens(self, run: EngineRequest) -> int | None:
        return self.cached.get(run.request_id)

    def begin(self, run: EngineRequest, receive: Receive, arrived_s: float) -> None:
        self.begun.append(run.request_id)
        self.receive[run.request_id] = receive
        if self.error is not None:
            raise self.error

    def abort(self, run: EngineRequest) -> None:
        self.aborted.append(run.request_id)

    async def stats(self) -> EngineStats:
        return EngineStats(num_waiting=1)

    async def check_health(self) -> None: ...

    async def stop(self) -> None: ...

    def give(self, name: str, *, cached: int = 0, is_last: bool = False) -> None:
        reason = FinishReason.STOP if is_last else None
        self.receive[name](TokenEvent((1,), None, reason, cached))


class Clock:
    """The time that the queue and its timers see; made inside the test's loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        for module in (admission, fair_queue):
            monkeypatch.setattr(module, "time", self)
        monkeypatch.setattr(asyncio.get_running_loop(), "time", self.monotonic)

    def monotonic(self) -> float:
        return self.now_s

    async def pass_to(self, now_s: float) -> None:
        """Let the timers run that are due by then."""
        self.now_s = now_s
        for _ in range(3):
            await asyncio.sleep(0)


async def engine_of(runner: Recorder, max_num_waiting: int = 100) -> QueuedEngine[EngineRequest]:
    engine = QueuedEngine(runner, max_num_waiting)
    await engine.start()
    return engine


def request(name: str, num_tokens: int = 1, **options: Any) -> EngineRequest:
    return EngineRequest(name, (1,) * num_tokens, SamplingParams(100), **options)


Open = Callable[[EngineRequest], Any]


def opener(engine: QueuedEngine[EngineRequest]) -> tuple[Open, list[Outcome]]:
    heard: list[Outcome] = []

    async def open_(request: EngineRequest) -> Entry[EngineRequest]:
        return await engine.open(request, heard.append)

    return open_, heard
