"""An engine that may die, made fit to serve: a death costs requests nothing but time.

A request continues where it was, on another replica, or on the same once it is restarted: its next
run is given the tokens that were shown, and its sampling and its grammar continue from there. What
ran in a death is on probation until it has come further than it had then; those that had shown
nothing run one at a time, so that a second death convicts one and no other.
In the same way an answer continues that the engine dropped because its reader was behind (Paused).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Final

from engines.base import (
    Engine,
    EngineInfo,
    EngineRequest,
    EngineStats,
    ExpectedWait,
    OnEntered,
    TokenEvent,
    ignore,
)
from engines.errors import EngineDead, NotTaken, Paused, QueueFull, RequestQuarantined, SlowReader
from engines.fleet import Fleet, Replica
from engines.recovery.crash_records import CLEAR, CrashRecords, Level, fingerprint
from engines.recovery.probe import Probes
from engines.validation import first_missing

MARGIN: Final = 4  # tokens an engine may have made before its death that were not sent
RESTART_TIMEOUT_S: Final = 300.0  # a large model loads for minutes
MAX_DEATHS: Final = 6  # near one request: a killer is convicted before
_LOOK_S: Final = 0.05

log = logging.getLogger(__name__)


class RetryAttempt:
    """One run of a request; on probation until it is past where the engine died before."""

    def __init__(self, request: EngineRequest, records: CrashRecords, num_tokens: int = 0) -> None:
        """`num_tokens`: of the answer, from earlier runs."""
        self.num_tokens = num_tokens
        self.is_on_probation = False
        self.is_judged = (
            False  # the engine died under it, and it is decided which request is to blame
        )
        self.is_lost = False  # the engine answers no more, for whatever reason
        self.replica: Replica[Any] | None = None  # where it runs
        self.life = 0  # of the engine there when it began
        self.has_turn = False
        self.is_apart = False  # it runs, or ran, with a turn
        self._request = request
        self._records = records
        self._key: str | None = None
        self._probation = 0  # tokens
        self._num_pending = 0  # tokens of its prompt that the replica is to compute

    async def begin(self) -> None:
        """Wait for a turn alone if the request needs one; raises RequestQuarantined."""
        needs_turn = self._look_up()
        if needs_turn:
            await self._records.lock.enter()
            self.has_turn = self.is_apart = True
            if not self._look_up():  # another run cleared it meanwhile
                self.end()

    @property
    def has_lost_engine(self) -> bool:
        """Whether the process it ran on is gone."""
        return self.replica is not None and self.replica.life != self.life

    @property
    def is_answered(self) -> bool:
        """Whether the process it ran on serves."""
        return self.replica is not None and self.replica.is_ready and not self.has_lost_engine

    def run_on(self, replica: Replica[Any]) -> None:
        self.replica, self.life = replica, replica.life
        replica.num_running += 1
        self._num_pending = replica.num_new
        replica.count_prompt(self._num_pending)

    def take(self, event: TokenEvent) -> None:
        """Count the tokens of an event; ends the probation once they suffice."""
        self.num_tokens += len(event.token_ids)
        self._end_prompt()
        has_passed = self.num_tokens > self._probation or event.finish_reason is not None
        if self.is_on_probation and has_passed:
            self._records.forget(self.key)
            self.is_on_probation = False
            self.end()

    def blame(self, level: Level) -> None:
        """Record against the request that the engine died under it."""
        self.is_judged = True
        self._records.record(self.key, level, self.num_tokens)
        if level is Level.QUARANTINED:
            log.error(
                "The engine crashed twice while running request %s; identical requests are refused "
                "for %g s",
                self._request.request_id,
                self._records.keep_s,
            )

    def leave(self) -> None:
        """Note that the request runs no more, and give its turn to the next."""
        if self.replica is not None:
            self.replica.num_running -= 1
        self._end_prompt()
        self.end()

    def _end_prompt(self) -> None:
        """Its prompt is computed, or is not to be computed any more."""
        if self._num_pending and self.replica is not None:
            self.replica.count_prompt(-self._num_pending)
            self._num_pending = 0

    def end(self) -> None:
        """Give the turn to the next suspect, if this attempt has it."""
        if self.has_turn:
            self.has_turn = False
            self._records.lock.leave()

    @property
    def key(self) -> str:
        """The request's fingerprint; computed only when something is held against any request."""
        if self._key is None:
            self._key = fingerprint(self._request)
        return self._key

    def _look_up(self) -> bool:
        """Look up the request's crash record; true if it must run separately."""
        record = self._records.look_up(self.key) if self._records.are_any else CLEAR
        if record.level is Level.QUARANTINED:
            seconds = max(1, round(record.forget_at_s - time.monotonic()))
            raise RequestQuarantined(
                "the engine crashed twice while running this request; identical requests are "
                f"refused for {seconds} s; change the request"
            )
        self.is_on_probation = record.level is not Level.CLEAR
        self._probation = record.num_tokens + MARGIN
        is_early = self.is_on_probation and record.num_tokens <= MARGIN
        return is_early or record.level is Level.GRAVE


def assign_blame(attempts: Iterable[RetryAttempt]) -> None:
    """Decide which request caused a death of the engine: one is blamed, the rest are suspects."""
    running = [attempt for attempt in attempts if not attempt.is_judged]
    suspects = [attempt for attempt in running if attempt.is_on_probation]
    apart = [attempt for attempt in suspects if attempt.is_apart]
    blamed = apart or (suspects if len(suspects) == 1 else [])
    for attempt in running:
        if attempt in blamed:
            attempt.blame(Level.QUARANTINED)
        else:
            attempt.blame(Level.GRAVE if attempt.is_on_probation else Level.SUSPECT)


class PartialAnswer:
    """The tokens shown of one request so far; what is left of it is a request of its own."""

    def __init__(self, request: EngineRequest) -> None:
        self.request = request
        self._token_ids = list(request.generated_token_ids)
        self._first: TokenEvent | None = None  # of the first run that showed anything
        self._is_continued = False
        self._num_restarts = 0

    @property
    def num_tokens(self) -> int:
        """How many tokens of the answer have been shown."""
        return len(self._token_ids)

    def rest(self) -> EngineRequest:
        """The request for the part of the answer that has not been shown."""
        if not self._token_ids:
            return self.request
        self._is_continued = True
        sampling = self.request.sampling
        if sampling.prompt_logprobs is not None:  # they came with the first tokens
            sampling = replace(sampling, prompt_logprobs=None)
        return replace(self.request, generated_token_ids=tuple(self._token_ids), sampling=sampling)

    def restart(self) -> None:
        """Its engine died. It was being served: it is not refused for the time of a restart."""
        self._num_restarts += 1
        self.resume()

    def resume(self) -> None:
        """Remove the wait limit: an answer that has started may wait as long as it takes."""
        self.request = replace(self.request, max_wait_s=None)

    def take(self, event: TokenEvent) -> TokenEvent:
        """Count an event as shown; gives it as the first run would have given it."""
        self._token_ids += event.token_ids
        first = self._first = self._first or event
        if not self._is_continued and not self._num_restarts:
            return event
        return replace(
            event,
            num_cached_tokens=first.num_cached_tokens,
            queued_s=first.queued_s,
            num_restarts=self._num_restarts,
        )


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
        self._lives: dict[int, int] = {}  # of the replicas, when the last request came
        self._is_stopping = False

    @property
    def info(self) -> EngineInfo:
        return self._fleet.info

    @property
    def engines(self) -> tuple[Engine, ...]:
        """Each engine by itself, without what is made of a death."""
        return tuple(replica.engine for replica in self._fleet.replicas)

    async def start(self) -> None:
        await self._fleet.start()

    async def generate(
        self, request: EngineRequest, on_entered: OnEntered = ignore
    ) -> AsyncGenerator[TokenEvent, None]:
        """Yield the request's tokens; raises RequestQuarantined rather than kill a third time."""
        answer, num_deaths, is_again = PartialAnswer(request), 0, False
        while True:
            if is_again:  # it may wait as long as it takes
                on_entered()
            attempt, replica = await self._admit(answer, is_again=is_again)
            try:
                async with aclosing(replica.engine.generate(answer.rest(), on_entered)) as events:
                    async for event in events:
                        attempt.take(event)
                        yield answer.take(event)
                return
            except EngineDead as error:
                attempt.is_lost = True
                self._judge()
                num_deaths += 1
                if num_deaths == MAX_DEATHS or not self._may_resume(answer):
                    raise
                is_again = True
                answer.restart()
                log.warning(
                    "Request %s continues after %d tokens: %s",
                    *(request.request_id, answer.num_tokens, error),
                )
            except Paused as pause:
                if not self._may_resume(answer):
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
        return await self._fleet.stats()

    def expected_wait(self, tenant: str) -> ExpectedWait:
        return self._fleet.expected_wait(tenant)

    async def check_health(self) -> None:
        """Raise EngineDead unless one engine of the fleet answers and generates."""
        await self._probes.check()

    async def drain(self) -> None:
        await self._fleet.drain()

    async def stop(self) -> None:
        """Stop the fleet; no request is run again."""
        self._is_stopping = True
        await self._probes.stop()
        await self._fleet.stop()

    def _may_resume(self, answer: PartialAnswer) -> bool:
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
                self._notice_deaths()
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

    def _notice_deaths(self) -> None:
        lives = {replica.number: replica.life for replica in self._fleet.replicas}
        if any(life and lives.get(number) != life for number, life in self._lives.items()):
            self._records.note_death()
        self._lives = lives

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
