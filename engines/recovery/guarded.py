"""An engine that may die, made fit to serve: retries what a death cost nothing but time.

A request that had shown no token runs once more on the restarted engine. What ran in a
death is on probation until it has come further than it had then (engines/recovery/trial.py); those
that had shown nothing run one at a time, so that a second death convicts one and no other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from engines.base import Engine, EngineInfo, EngineRequest, EngineStats, TokenEvent
from engines.errors import EngineDead
from engines.recovery.probe import Probe
from engines.recovery.suspects import Suspects
from engines.recovery.trial import Trial, judge

RESTART_TIMEOUT_S: Final = 300.0  # a large model loads for minutes
_LOOK_S: Final = 0.05

log = logging.getLogger(__name__)


class GuardedEngine:
    """Implements engines.base.Engine around a client of an engine process."""

    def __init__(
        self,
        engine: Engine,
        suspects: Suspects,
        *,
        restart_timeout_s: float = RESTART_TIMEOUT_S,
        probe: Probe | None = None,
    ) -> None:
        self._engine = engine
        self._suspects = suspects
        self._restart_timeout_s = restart_timeout_s
        self._probe = probe or Probe(engine)
        self._running: set[Trial] = set()
        self._is_stopping = False

    @property
    def info(self) -> EngineInfo:
        """What the engine serves."""
        return self._engine.info

    async def start(self) -> None:
        """Start the engine."""
        await self._engine.start()

    async def generate(self, request: EngineRequest) -> AsyncGenerator[TokenEvent, None]:
        """Yield the request's tokens; raises RequestQuarantined rather than kill a third time."""
        is_retry = False
        while True:
            trial = await self._admit(request, is_retry)
            try:
                async with aclosing(self._engine.generate(request)) as events:
                    async for event in events:
                        trial.take(event)
                        yield event
                return
            except EngineDead as error:
                self._on_death(trial)
                if is_retry or trial.num_tokens or self._is_stopping:
                    raise
                log.warning("Request %s is run again: %s", request.request_id, error)
            finally:
                self._running.discard(trial)
                trial.end()
            is_retry = True

    async def stats(self) -> EngineStats:
        """Ask the engine."""
        return await self._engine.stats()

    async def check_health(self) -> None:
        """Ask the engine, and whether it still generates."""
        await self._engine.check_health()
        await self._probe.check()

    async def drain(self) -> None:
        """Drain the engine."""
        await self._engine.drain()

    async def stop(self) -> None:
        """Stop the engine; nothing is run again."""
        self._is_stopping = True
        await self._probe.stop()
        await self._engine.stop()

    async def _admit(self, request: EngineRequest, is_retry: bool) -> Trial:
        """Wait for turn and engine if the request ran in a death; else it may be refused now."""
        trial = Trial(request, self._suspects)
        try:
            await trial.begin()
            if is_retry or trial.is_on_probation:
                await self._until_restarted()
            await self._engine.check_health()
        except BaseException:
            trial.end()
            raise
        self._running.add(trial)
        return trial

    def _on_death(self, trial: Trial) -> None:
        """The first run to learn of a death decides for all."""
        if not trial.is_judged and not self._is_stopping:
            judge(self._running)

    async def _until_restarted(self) -> None:
        """Return when the engine is there; raises EngineDead if that takes too long."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._restart_timeout_s
        while True:
            try:
                return await self._engine.check_health()
            except EngineDead:
                if self._is_stopping or loop.time() > deadline_s:
                    raise
            await asyncio.sleep(_LOOK_S)
