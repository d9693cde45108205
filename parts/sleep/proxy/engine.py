"""The queue before an engine that may sleep, and the way to it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Final

from engines.base import (
    PROBE_ID,
    EngineInfo,
    EngineRequest,
    EngineStats,
    FinishReason,
    Outcome,
    Receive,
    SamplingParams,
    TokenEvent,
)
from engines.errors import EngineDead, EngineError, RequestFailed
from engines.queueing.admission import QueuedEngine
from engines.queueing.fair_queue import Entry
from parts.sleep.proxy.sleeper import Sleeper

ORDER: Final = "sleep"  # in a request's extras: it is an order, "sleep" or "wake"

log = logging.getLogger(__name__)


def order(id: str, what: str) -> EngineRequest:
    """A request that puts the engine to sleep or wakes it; its event says whether it sleeps."""
    return EngineRequest(id, (0,), SamplingParams(max_tokens=1), extras={ORDER: what})


@dataclass(slots=True, eq=False)
class ProcessRun:
    """A request in the engine's process."""

    request: EngineRequest
    receive: Receive | None = None
    following: asyncio.Task[None] | None = None


class SleepingEngine(QueuedEngine[ProcessRun]):
    """Requests wake the engine before they queue: a start is no time in the queue."""

    def __init__(self, sleeper: Sleeper, max_num_waiting: int | None) -> None:
        idle = asyncio.Event()
        super().__init__(ProcessRunner(sleeper), max_num_waiting, idle)
        self._sleeper = sleeper
        self._num_waking = 0
        sleeper.is_busy = lambda: not idle.is_set()

    async def open(self, request: EngineRequest, receive: Receive) -> Entry[ProcessRun]:
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
    ) -> Entry[ProcessRun]:
        """An entry that has ended, without the engine."""
        entry = Entry(self._on_outcome, request, ProcessRun(request), receive, time.monotonic())
        entry.end()
        receive(TokenEvent((0,), finish_reason=FinishReason.LENGTH, extras=extras))
        return entry

    def _leave(self, entry: Entry[ProcessRun]) -> None:
        super()._leave(entry)
        if not _is_probe(entry.request):
            self._sleeper.touch()


def _is_probe(request: EngineRequest) -> bool:
    return request.request_id == PROBE_ID and request.prompt_token_ids == (0,)


class ProcessRunner:
    """Gives requests to the engine's process; implements engines.base.Runner."""

    def __init__(self, sleeper: Sleeper) -> None:
        self._sleeper = sleeper
        self._runs: set[ProcessRun] = set()

    @property
    def info(self) -> EngineInfo:
        return self._sleeper.info

    async def start(self) -> None:
        await self._sleeper.start()

    async def prepare(self, request: EngineRequest) -> ProcessRun:
        """Nothing: the engine checks the request."""
        return ProcessRun(request)

    def num_cached_tokens(self, run: ProcessRun) -> int | None:
        """Not known here."""
        return None

    def begin(self, run: ProcessRun, receive: Receive, arrived_s: float) -> None:
        run.receive = receive
        self._runs.add(run)
        waited_s = time.monotonic() - arrived_s
        run.following = asyncio.create_task(self._follow(run, waited_s), name="sleep-request")

    def abort(self, run: ProcessRun) -> None:
        run.receive = None
        self._runs.discard(run)
        if run.following is not None:
            run.following.cancel()

    async def stats(self) -> EngineStats:
        return await self._sleeper.stats()

    async def check_health(self) -> None:
        await self._sleeper.check_health()

    async def stop(self) -> None:
        following = [run.following for run in self._runs if run.following is not None]
        for run in list(self._runs):
            receive = run.receive
            self.abort(run)
            if receive is not None:
                receive(EngineDead("the engine has been stopped"))
        await asyncio.gather(*following, return_exceptions=True)
        await self._sleeper.stop()

    async def _follow(self, run: ProcessRun, waited_s: float) -> None:
        request = replace(run.request, max_wait_s=None)  # it has waited in our queue
        try:
            async with aclosing(self._sleeper.client.generate(request)) as events:
                async for event in events:
                    event = replace(event, queued_s=event.queued_s + waited_s)
                    self._give(run, event, is_last=event.finish_reason is not None)
        except EngineError as error:
            self._give(run, error, is_last=True)
        except Exception as error:
            log.exception("Request %s failed", run.request.request_id)
            failed = RequestFailed(f"{type(error).__name__}: {error}")
            self._give(run, failed, is_last=True)

    def _give(self, run: ProcessRun, outcome: Outcome, *, is_last: bool) -> None:
        if is_last:
            self._runs.discard(run)
        if run.receive is not None:
            run.receive(outcome)
