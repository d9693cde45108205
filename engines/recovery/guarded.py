"""An engine that may die, made fit to serve: a death costs requests nothing but time.

A request continues where it was, on another replica, or on the same once it is restarted: its next
run is given the tokens that were shown, and its sampling and its grammar continue from there. What
ran in a death is on probation until it has come further than it had then
(engines/recovery/attempt.py); those that had shown nothing run one at a time, so that a second
death convicts one and no other.
In the same way an answer continues that the engine dropped because its reader was behind (Paused).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final

from engines.base import EngineInfo, EngineRequest, EngineStats, ExpectedWait, TokenEvent
from engines.errors import EngineDead, NotTaken, Paused, QueueFull, SlowReader
from engines.fleet import Fleet, Replica
from engines.recovery.attempt import PartialAnswer, RetryAttempt, assign_blame
from engines.recovery.crash_records import CrashRecords
from engines.recovery.probe import Probes
from engines.validation import first_missing

RESTART_TIMEOUT_S: Final = 300.0  # a large model loads for minutes
MAX_DEATHS: Final = 6  # near one request: a killer is convicted before
_LOOK_S: Final = 0.05

log = logging.getLogger(__name__)


class GuardedEngine:
    """Implements engines.base.Engine around the clients of engine processes."""

    def __init__(
        self,
        fleet: Fleet[Any],
        records: CrashRecords,
        *,
        restart_timeout_s: float = RESTART_TIMEOUT_S,
    ) -> None:
        self._fleet = fleet
        self._records = records
        self._restart_timeout_s = restart_timeout_s
        self._probes = Probes(fleet)
        self._attempts: set[RetryAttempt] = set()  # that run, or ran in what may have been a death
        self._num_judged = 0  # deaths
        self._is_stopping = False

    @property
    def info(self) -> EngineInfo:
        return self._fleet.info

    async def start(self) -> None:
        """Start the fleet; raises EngineStartError if an engine never gets ready."""
        await self._fleet.start()

    async def generate(self, request: EngineRequest) -> AsyncGenerator[TokenEvent, None]:
        """Yield the request's tokens; raises RequestQuarantined rather than kill a third time."""
        answer, num_deaths, is_again = PartialAnswer(request), 0, False
        while True:
            attempt, replica = await self._admit(answer, is_again=is_again)
            try:
                async with aclosing(replica.engine.generate(answer.rest())) as events:
                    async for event in events:
                        attempt.take(event)
                        yield answer.take(event)
                return
            except EngineDead as error:
                attempt.is_lost = True
                self._judge()
                num_deaths += 1
                if num_deaths == MAX_DEATHS or not self._may_go_on(answer):
                    raise
                is_again = True
                answer.restart()
                log.warning(
                    "Request %s continues after %d tokens: %s",
                    *(request.request_id, answer.num_tokens, error),
                )
            except Paused as pause:
                if not self._may_go_on(answer):
                    log.warning("Request %s was ended: %s", request.request_id, pause)
                    raise SlowReader(str(pause)) from None
                is_again = True
                answer.resume()
                log.debug("Request %s: %s, which has come back", request.request_id, pause)
            except NotTaken as error:
                if self._is_stopping:
                    raise EngineDead(str(error)) from error
                is_again = True
                answer.resume()
            except QueueFull:
                if not is_again:
                    raise
                # All requests that ran before the death come back at once.
                await asyncio.sleep(_LOOK_S)
            finally:
                if not attempt.is_lost:
                    self._attempts.discard(attempt)
                attempt.leave()

    async def stats(self) -> EngineStats:
        """The counts of the fleet; raises EngineDead if no engine answers."""
        return await self._fleet.stats()

    def expected_wait(self, tenant: str) -> ExpectedWait:
        """How long a request of the tenant would wait in the queue of the fleet."""
        return self._fleet.expected_wait(tenant)

    async def check_health(self) -> None:
        """Raise EngineDead unless one engine of the fleet answers and generates."""
        await self._probes.check()

    async def drain(self) -> None:
        """Refuse new requests and return when the running ones have ended."""
        await self._fleet.drain()

    async def stop(self) -> None:
        """Stop the fleet; no request is run again."""
        self._is_stopping = True
        await self._probes.stop()
        await self._fleet.stop()

    def _may_go_on(self, answer: PartialAnswer) -> bool:
        if self._is_stopping:
            return False
        if answer.num_tokens == 0:
            return True
        return first_missing(answer.rest(), self.info.capabilities) is None

    async def _admit(
        self, answer: PartialAnswer, *, is_again: bool
    ) -> tuple[RetryAttempt, Replica[Any]]:
        """Wait for turn and engine if the request ran in a death; else it may be refused now."""
        attempt = RetryAttempt(answer.request, self._records, answer.num_tokens)
        try:
            while True:
                num_judged = self._num_judged
                await attempt.begin()
                if is_again or attempt.is_on_probation:
                    await self._until_restarted()
                replica = await self._fleet.choose(answer.rest())
                self._judge()
                if self._num_judged == num_judged:
                    break
                attempt.end()  # a death was judged meanwhile: what is held against it may be new
        except BaseException:
            attempt.end()
            raise
        attempt.run_on(replica)
        self._attempts.add(attempt)
        return attempt, replica

    def _judge(self) -> None:
        """What ran on a process that is gone died with it.

        What was lost on one that answers again was lost to its silence, which proves nothing.
        """
        dead = {attempt for attempt in self._attempts if attempt.has_lost_engine}
        self._attempts = {t for t in self._attempts - dead if not (t.is_lost and t.is_answered)}
        if dead and not self._is_stopping:
            assign_blame(dead)
            self._num_judged += 1

    async def _until_restarted(self) -> None:
        """Return when an engine is there; raises EngineDead if that takes too long."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._restart_timeout_s
        while True:
            try:
                await self._fleet.healthy()
                return
            except EngineDead:
                if self._is_stopping or loop.time() > deadline_s:
                    raise
            await asyncio.sleep(_LOOK_S)
