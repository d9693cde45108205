"""The queue before an engine that may sleep, and the way to it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from typing import Any, Final

from engines.base import (
    PROBE_ID,
    EngineInfo,
    EngineRequest,
    EngineStats,
    FinishReason,
    Receive,
    SamplingParams,
    TokenEvent,
)
from engines.errors import RequestFailed
from engines.queueing.admission import QueuedEngine
from engines.queueing.fair_queue import Entry
from engines.queueing.forwarding import ForwardedRun, ForwardingRunner
from parts.sleep.proxy.sleeper import Sleeper

ORDER: Final = "sleep"  # in a request's extras: it is an order, "sleep" or "wake"


def order(id: str, what: str) -> EngineRequest:
    """A request that puts the engine to sleep or wakes it; its event says whether it sleeps."""
    return EngineRequest(id, (0,), SamplingParams(max_tokens=1), extras={ORDER: what})


class SleepingEngine(QueuedEngine[ForwardedRun]):
    """Requests wake the engine before they queue: a start is no time in the queue."""

    def __init__(self, sleeper: Sleeper, max_num_waiting: int | None) -> None:
        idle = asyncio.Event()
        super().__init__(ProcessRunner(sleeper), max_num_waiting, idle)
        self._sleeper = sleeper
        self._num_waking = 0
        sleeper.is_busy = lambda: not idle.is_set()

    async def open(self, request: EngineRequest, receive: Receive) -> Entry[ForwardedRun]:
        """Wake the engine if it sleeps, then queue the request; probes do not wake it."""
        if ORDER in request.extras:
            return self._answered(request, receive, {"asleep": await self._obey(request)})
        if _is_probe(request):
            if self._sleeper.is_awake:
                return await super().open(request, receive)
            if self._sleeper.failure is not None:
                raise RequestFailed(self._sleeper.failure)
            return self._answered(request, receive)
        with self._sleeper.held():
            if not self._sleeper.is_awake:
                self._check_room(request, self._num_waking)
                self._num_waking += 1
                try:
                    await self._sleeper.awake()
                finally:
                    self._num_waking -= 1
            return await super().open(request, receive)

    async def stats(self) -> EngineStats:
        """Count; requests that wait for the start are waiting."""
        stats = await super().stats()
        return replace(stats, num_waiting=stats.num_waiting + self._num_waking)

    async def _obey(self, request: EngineRequest) -> bool:
        if request.extras[ORDER] == "sleep":
            return await self._sleeper.sleep()
        with self._sleeper.held():
            await self._sleeper.awake()
        return False

    def _answered(
        self, request: EngineRequest, receive: Receive, extras: Mapping[str, Any] | None = None
    ) -> Entry[ForwardedRun]:
        """An entry that has ended, without the engine."""
        entry = Entry(self._on_outcome, request, ForwardedRun(request), receive, time.monotonic())
        entry.end()
        receive(TokenEvent((0,), finish_reason=FinishReason.LENGTH, extras=extras))
        return entry

    def _leave(self, entry: Entry[ForwardedRun]) -> None:
        super()._leave(entry)
        if not _is_probe(entry.request):
            self._sleeper.touch()


def _is_probe(request: EngineRequest) -> bool:
    return request.request_id == PROBE_ID and request.prompt_token_ids == (0,)


class ProcessRunner(ForwardingRunner):
    """Gives requests to the engine's process; implements engines.base.Runner."""

    def __init__(self, sleeper: Sleeper) -> None:
        super().__init__()
        self._sleeper = sleeper

    @property
    def info(self) -> EngineInfo:
        return self._sleeper.info

    async def start(self) -> None:
        await self._sleeper.start()

    async def prepare(self, request: EngineRequest) -> ForwardedRun:
        """Nothing: the engine checks the request."""
        return ForwardedRun(request)

    async def stats(self) -> EngineStats:
        return await self._sleeper.stats()

    async def check_health(self) -> None:
        await self._sleeper.check_health()

    async def stop(self) -> None:
        await self._end_runs()
        await self._sleeper.stop()

    def _events(self, request: EngineRequest) -> AsyncGenerator[TokenEvent, None]:
        # It has waited in our queue.
        return self._sleeper.client.generate(replace(request, max_wait_s=None))
