"""One request on engines that may die: what was shown of its answer, and every run of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from engines.base import EngineRequest, TokenEvent
from engines.errors import RequestQuarantined
from engines.fleet import Replica
from engines.recovery.crash_records import (
    CLEAR,
    CrashRecords,
    Level,
    fingerprint,
)

MARGIN: Final = 4  # tokens an engine may have made before its death that were not sent

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
        """Note the replica on which the request runs from now on."""
        self.replica, self.life = replica, replica.life
        replica.num_running += 1

    def take(self, event: TokenEvent) -> None:
        """Count the tokens of an event; ends the probation once they suffice."""
        self.num_tokens += len(event.token_ids)
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
                "The engine died twice while running request %s; identical requests are refused "
                "for %g s",
                self._request.request_id,
                self._records.keep_s,
            )

    def leave(self) -> None:
        """Note that the request runs no more, and give its turn to the next."""
        if self.replica is not None:
            self.replica.num_running -= 1
        self.end()

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
                "the engine died twice while running this request; identical requests are "
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
