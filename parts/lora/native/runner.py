"""A runner of the native engine whose requests may ask for adapters."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from engines.base import (
    Adapter,
    EngineInfo,
    EngineRequest,
    EngineStats,
    Outcome,
    Receive,
    TokenEvent,
)
from engines.errors import EngineDead, EngineError, RequestFailed
from engines.native.runner import CoreRunner
from engines.native.worker import Submission
from parts.lora.native.kept import KeptAdapters

log = logging.getLogger("harmonium.lora")


class AdapterRunner:
    """Begins a request once its adapter is in memory; implements engines.base.Runner."""

    def __init__(self, runner: CoreRunner, make_kept: Callable[[], KeptAdapters]) -> None:
        """`make_kept`: called when the model is loaded."""
        self._runner, self._make_kept = runner, make_kept
        self._kept: KeptAdapters | None = None
        self._starting: dict[Submission, tuple[asyncio.Task[None], Receive]] = {}
        self._running: dict[Submission, Adapter] = {}

    @property
    def info(self) -> EngineInfo:
        info = self._runner.info
        can = replace(info.capabilities, lacks=info.capabilities.lacks - {"adapter"})
        return replace(info, capabilities=can)

    async def start(self) -> None:
        await self._runner.start()
        self._kept = self._make_kept()

    async def prepare(self, request: EngineRequest) -> Submission:
        return await self._runner.prepare(request)

    def num_cached_tokens(self, run: Submission) -> int | None:
        return self._runner.num_cached_tokens(run)

    def begin(self, run: Submission, receive: Receive, arrived_s: float) -> None:
        adapter = run.request.adapter
        if adapter is None:
            self._runner.begin(run, receive, arrived_s)
        elif self._adapters().take(adapter):
            self._run(run, adapter, receive, arrived_s)
        else:
            starting = self._begin(run, adapter, receive, arrived_s)
            task = asyncio.create_task(starting, name="adapter of a request")
            self._starting[run] = task, receive

    def abort(self, run: Submission) -> None:
        if run in self._starting:
            self._starting.pop(run)[0].cancel()
        else:
            self._runner.abort(run)
            self._release(run)

    async def stats(self) -> EngineStats:
        """Requests whose adapter is on its way count as waiting."""
        stats = await self._runner.stats()
        return replace(stats, num_waiting=stats.num_waiting + len(self._starting))

    async def check_health(self) -> None:
        await self._runner.check_health()

    async def stop(self) -> None:
        starting, self._starting = self._starting, {}
        for task, receive in starting.values():
            task.cancel()
            receive(EngineDead("the engine has been stopped"))
        if self._kept is not None:
            self._kept.close()
        await self._runner.stop()

    async def _begin(
        self, run: Submission, adapter: Adapter, receive: Receive, arrived_s: float
    ) -> None:
        try:
            await self._adapters().acquire(adapter)
            del self._starting[run]
            self._run(run, adapter, receive, arrived_s)
        except EngineError as error:
            self._starting.pop(run, None)
            receive(error)
        except Exception as error:  # a bug costs this request only
            log.exception("Request %s failed", run.request.request_id)
            self._starting.pop(run, None)
            receive(RequestFailed(f"{type(error).__name__}: {error}"))

    def _run(self, run: Submission, adapter: Adapter, receive: Receive, arrived_s: float) -> None:
        def heard(outcome: Outcome) -> None:
            if isinstance(outcome, EngineError) or (
                isinstance(outcome, TokenEvent) and outcome.finish_reason is not None
            ):
                self._release(run)
            receive(outcome)

        self._running[run] = adapter
        try:
            self._runner.begin(run, heard, arrived_s)
        except EngineError:
            self._release(run)
            raise

    def _release(self, run: Submission) -> None:
        if (adapter := self._running.pop(run, None)) is not None:
            self._adapters().release(adapter)

    def _adapters(self) -> KeptAdapters:
        assert self._kept is not None, "it was started"
        return self._kept
