"""An engine that may die, made fit to serve: a death costs requests nothing but time.

A request goes on where it was, on the restarted engine: its next run is given the tokens that were
shown, and its draws and its grammar go on from there. What ran in a death is on probation until
it has come further than it had then (engines/recovery/trial.py); those that had shown nothing run
one at a time, so that a second death convicts one and no other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from engines.base import EngineInfo, EngineRequest, EngineStats, TokenEvent
from engines.errors import EngineDead, QueueFull
from engines.process.client import EngineClient
from engines.recovery.answer import Answer
from engines.recovery.probe import Probe
from engines.recovery.suspects import Suspects
from engines.recovery.trial import Trial, judge

RESTART_TIMEOUT_S: Final = 300.0  # a large model loads for minutes
MAX_DEATHS: Final = 6  # near one request: a killer is convicted before
_LOOK_S: Final = 0.05

log = logging.getLogger(__name__)


class GuardedEngine:
    """Implements engines.base.Engine around a client of an engine process."""

    def __init__(
        self,
        engine: EngineClient,
        suspects: Suspects,
        *,
        restart_timeout_s: float = RESTART_TIMEOUT_S,
        probe: Probe | None = None,
    ) -> None:
        self._engine = engine
        self._suspects = suspects
        self._restart_timeout_s = restart_timeout_s
        self._probe = probe or Probe(engine)
        self._trials: set[Trial] = set()  # that run, or ran in what may have been a death
        self._num_judged = 0  # deaths
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
        answer, num_deaths = Answer(request), 0
        while True:
            trial = await self._admit(request, answer.num_tokens, is_again=num_deaths > 0)
            try:
                async with aclosing(self._engine.generate(answer.rest())) as events:
                    async for event in events:
                        trial.take(event)
                        yield answer.take(event)
                return
            except EngineDead as error:
                trial.is_lost = True
                num_deaths += 1
                if num_deaths == MAX_DEATHS or not self._may_go_on(answer):
                    raise
                log.warning(
                    "Request %s goes on after %d tokens: %s",
                    *(request.request_id, answer.num_tokens, error),
                )
            except QueueFull:
                if num_deaths == 0:
                    raise
                await asyncio.sleep(_LOOK_S)  # all who ran before the death come back at once
            finally:
                if not trial.is_lost:
                    self._trials.discard(trial)
                trial.end()

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

    def _may_go_on(self, answer: Answer) -> bool:
        if self._is_stopping:
            return False
        return answer.num_tokens == 0 or self._engine.info.capabilities.continuation

    async def _admit(self, request: EngineRequest, num_tokens: int, *, is_again: bool) -> Trial:
        """Wait for turn and engine if the request ran in a death; else it may be refused now."""
        trial = Trial(request, self._suspects, num_tokens)
        try:
            while True:
                num_judged = self._num_judged
                await trial.begin()
                if is_again or trial.is_on_probation:
                    await self._until_restarted()
                await self._engine.check_health()
                self._judge()
                if self._num_judged == num_judged:
                    break
                trial.end()  # a death was judged meanwhile: what is held against it may be new
        except BaseException:
            trial.end()
            raise
        trial.life = self._engine.life
        self._trials.add(trial)
        return trial

    def _judge(self) -> None:
        """The engine is there: what ran on another process than this died with it.

        What was lost on this one was lost to its silence, which proves nothing.
        """
        dead = [trial for trial in self._trials if trial.life != self._engine.life]
        self._trials = {t for t in self._trials if not (t.is_lost or t in dead)}
        if dead and not self._is_stopping:
            judge(dead)
            self._num_judged += 1

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
