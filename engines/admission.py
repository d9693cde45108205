"""Who may enter an engine, and when: the same queue in front of every engine.

Tenants' fairness, the length of the queue, draining and waiting are dealt with here, so that an
engine only has to run what it is given (`Runner`). It is given no more than it can begin soon:
what lies within it is served in its own order, which knows no tenants. Nobody is let in so late
that the first token would come after the request's own bound, and who has waited that long is told
so: whoever admitted it may have been wrong, by a burst or a machine that grew slow. Only a request
that finds nobody before it has no bound, so that there is always news of what a prompt takes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Final, Generic, TypeVar

from engines.base import (
    EngineInfo,
    EngineRequest,
    EngineStats,
    Outcome,
    Receive,
    Runner,
    TokenEvent,
)
from engines.errors import (
    EngineDead,
    EngineDraining,
    EngineError,
    Overloaded,
    QueueFull,
    RequestFailed,
)
from engines.pace import Ahead, Pace
from engines.queue import GENERATED_COST, FairQueue

# Prompts that an engine may hold before their first token: what two steps compute, for it begins
# the second before the tokens of the first are seen out here; and two requests however long.
_STEPS_AHEAD: Final = 2
_REQUESTS_AHEAD: Final = 2

log = logging.getLogger(__name__)

T = TypeVar("T")  # a request in the engine's own form


class Entry(Generic[T]):
    """One request from its arrival to its end."""

    __slots__ = (
        "_engine",
        "arrived_s",
        "has_begun",
        "is_bound",
        "is_inside",
        "is_open",
        "num_left",
        "num_tokens_ahead",
        "queued_s",
        "receive",
        "request",
        "run",
        "since_s",
        "too_late",
    )

    def __init__(
        self,
        engine: QueuedEngine[T],
        request: EngineRequest,
        run: T,
        receive: Receive,
        arrived_s: float,
    ) -> None:
        self._engine = engine
        self.request = request
        self.run = run
        self.receive = receive
        self.arrived_s = arrived_s
        self.queued_s = time.monotonic()  # since then it waits for the engine's steps
        self.too_late: asyncio.TimerHandle | None = None  # while it waits and may not for ever
        self.is_bound = False  # it may be refused for waiting too long
        # What the engine had to compute before its first token when it got it, its own prompt
        # included, and since when it worked on that.
        self.num_tokens_ahead = 0
        self.since_s = 0.0
        self.num_left = 0  # Ahead.num_left by then
        self.is_open = True  # it has not ended
        self.is_inside = False  # the engine has it
        self.has_begun = False  # the engine has given a token of it

    @property
    def num_known_tokens(self) -> int:
        """Tokens to be computed before the first new one."""
        return len(self.request.prompt_token_ids) + len(self.request.generated_token_ids)

    def take(self, outcome: Outcome) -> None:
        """Hand one outcome of the engine to whoever opened the entry, while it is open."""
        if self.is_open:
            self._engine.on_outcome(self, outcome)

    def end(self) -> None:
        """Close the entry and drop its references to the run and the receiver.

        Else each request would be a reference cycle, and a thousand that end together a garbage
        collection for which all streams wait.
        """
        self.is_open = False
        self.stop_timer()
        del self.run, self.receive

    def stop_timer(self) -> None:
        """Cancel the timer that would end the entry for having waited too long."""
        if self.too_late is not None:
            self.too_late.cancel()
            self.too_late = None


class QueuedEngine(Generic[T]):
    """A runner behind its queue; implements engines.base.Engine.

    All methods belong to the event loop that start() ran in.
    """

    def __init__(
        self, runner: Runner[T], max_num_waiting: int, idle: asyncio.Event | None = None
    ) -> None:
        """`idle`: to be set whenever there are no requests."""
        self._runner = runner
        self._max_num_waiting = max_num_waiting
        self._queue: FairQueue[Entry[T]] = FairQueue()
        self._inside: set[Entry[T]] = set()
        self._ahead = Ahead()
        self._pace = Pace()
        self._num_preparing = 0
        self._max_inside = 0
        self._max_tokens_ahead = 0
        self._is_admitting = False
        self._is_stopped = False
        self._is_draining = False
        self._idle = idle or asyncio.Event()
        self._idle.set()

    @property
    def info(self) -> EngineInfo:
        """What the engine serves; raises EngineDead before start()."""
        return self._runner.info

    async def start(self) -> None:
        """Start the engine; raises EngineStartError when it cannot be."""
        self._is_stopped = False
        await self._runner.start()
        info = self._runner.info
        self._max_inside = info.max_num_seqs
        self._max_tokens_ahead = _STEPS_AHEAD * info.max_num_batched_tokens

    async def open(self, request: EngineRequest, receive: Receive) -> Entry[T]:
        """Queue a request, of which `receive` then hears as from a Runner; raises EngineError.

        Whoever opens it closes it.
        """
        if self._is_draining:
            raise EngineDraining("the engine is stopping and takes no new requests")
        self._check_room(request.tenant, self._num_preparing)
        arrived_s = time.monotonic()
        self._num_preparing += 1
        self._idle.clear()
        try:
            run = await self._runner.prepare(request)
            entry = Entry(self, request, run, receive, arrived_s)
            entry.is_bound = request.max_wait_s is not None and self._is_anybody_before(entry)
            self._add(entry)
        finally:
            self._num_preparing -= 1
            self._note_idle()
        self._admit()
        if not entry.is_inside:
            self._limit_wait(entry)
        return entry

    def close(self, entry: Entry[T]) -> None:
        """Abort the request if it has not ended."""
        if entry.is_open:
            if entry.is_inside:
                self._runner.abort(entry.run)
            self._leave(entry)

    async def generate(self, request: EngineRequest) -> AsyncGenerator[TokenEvent, None]:
        """Yield one event for each step that added a token."""
        outcomes: asyncio.Queue[Outcome] = asyncio.Queue()
        entry = await self.open(request, outcomes.put_nowait)
        try:
            while True:
                outcome = await outcomes.get()
                if isinstance(outcome, EngineError):
                    raise outcome
                yield outcome
                if outcome.finish_reason is not None:
                    return
        finally:
            self.close(entry)

    async def stats(self) -> EngineStats:
        """Count; requests that wait in this queue or for their grammar count as waiting."""
        stats = await self._runner.stats()
        num_waiting = stats.num_waiting + len(self._queue) + self._num_preparing
        return replace(stats, num_waiting=num_waiting)

    async def check_health(self) -> None:
        """Raise EngineDead before start(), after stop(), and when the engine gave up."""
        await self._runner.check_health()

    async def drain(self) -> None:
        """Refuse new requests and return when the others have ended."""
        self._is_draining = True
        await self._idle.wait()

    async def stop(self) -> None:
        """End all waiting and running requests with EngineDead."""
        self._is_stopped = True
        for entry in list(self._queue):
            entry.take(EngineDead("the engine has been stopped"))
        await self._runner.stop()

    def on_outcome(self, entry: Entry[T], outcome: Outcome) -> None:
        """Count what the engine did for an open entry, and hand it on."""
        is_last = isinstance(outcome, EngineError) or outcome.finish_reason is not None
        if not isinstance(outcome, EngineError):
            tenant = entry.request.tenant
            self._queue.charge(tenant, GENERATED_COST * len(outcome.token_ids))
            if not entry.has_begun:
                self._queue.charge(tenant, -outcome.num_cached_tokens)
                self._on_begun(entry)
                if not is_last:
                    self._admit()
        entry.receive(outcome)
        if is_last and entry.is_open:
            self._leave(entry)

    def _add(self, entry: Entry[T]) -> None:
        if self._is_stopped:
            raise EngineDead("the engine has been stopped")
        request = entry.request
        self._check_room(request.tenant, self._num_preparing - 1)
        self._queue.add(entry, request.priority, request.tenant)

    def _check_room(self, tenant: str, num_preparing: int) -> None:
        limit = self._max_num_waiting
        if not self._queue.has_room(tenant, limit - num_preparing):
            raise QueueFull(
                f"{len(self._queue) + num_preparing} requests wait already and max_num_waiting "
                f"is {limit}; try again later"
            )

    def _admit(self) -> None:
        """Give the engine what it may have by now."""
        if self._is_admitting or self._is_stopped:
            return  # called back by the engine, from below
        self._is_admitting = True
        try:
            while self._queue and self._may_enter(self._queue.head()):
                entry = self._queue.take()
                if self._would_be_late(entry):
                    self._refuse(entry)
                else:
                    self._enter(entry)
        finally:
            self._is_admitting = False

    def _may_enter(self, entry: Entry[T]) -> bool:
        """Whether the engine would begin it soon; the less urgent ahead do not count."""
        if len(self._inside) >= self._max_inside:
            return False
        num_requests, num_tokens = self._ahead.of(entry.request.priority)
        num_tokens += entry.num_known_tokens
        return num_requests < _REQUESTS_AHEAD or num_tokens <= self._max_tokens_ahead

    def _is_anybody_before(self, entry: Entry[T]) -> bool:
        num_requests, _ = self._ahead.of(entry.request.priority)
        return bool(num_requests or self._queue or len(self._inside) >= self._max_inside)

    def _limit_wait(self, entry: Entry[T]) -> None:
        """Have it told when it waits too long; out here as soon as it cannot come in time."""
        entry.stop_timer()
        if not entry.is_open or not entry.is_bound:
            return
        left_s = self._due_s(entry) - time.monotonic()
        if not entry.is_inside:
            left_s -= self._pace.expected_s(entry.num_known_tokens)
        entry.too_late = asyncio.get_running_loop().call_later(left_s, self._refuse, entry)

    def _would_be_late(self, entry: Entry[T]) -> bool:
        if not entry.is_bound:
            return False
        now_s = time.monotonic()
        _, num_tokens = self._ahead.of(entry.request.priority)
        own_s = self._pace.expected_s(entry.num_known_tokens)
        all_s = self._pace.expected_s(num_tokens + entry.num_known_tokens)
        first_s = max(self._ahead.since_s(now_s) + all_s, now_s + own_s)
        return first_s > self._due_s(entry)

    @staticmethod
    def _due_s(entry: Entry[T]) -> float:
        """When its first token must have come."""
        assert entry.request.max_wait_s is not None
        return entry.queued_s + entry.request.max_wait_s

    def _refuse(self, entry: Entry[T]) -> None:
        now_s = time.monotonic()
        if entry.is_inside:
            self._learn(entry, now_s)  # it takes even longer
            self._runner.abort(entry.run)
        entry.take(
            Overloaded(
                f"It waited for {now_s - entry.queued_s:.1f} s, and its first token would come "
                f"later than the {entry.request.max_wait_s:g} s that this server lets anybody "
                "wait; try again later."
            )
        )

    def _enter(self, entry: Entry[T]) -> None:
        # What turns out to be cached is given back with the first token.
        self._queue.charge(entry.request.tenant, entry.num_known_tokens)
        entry.is_inside = True
        self._inside.add(entry)
        now_s = time.monotonic()
        entry.since_s, entry.num_left = self._ahead.since_s(now_s), self._ahead.num_left
        self._ahead.enter(entry.request.priority, entry.num_known_tokens, now_s)
        _, entry.num_tokens_ahead = self._ahead.of(entry.request.priority)
        self._limit_wait(entry)
        try:
            self._runner.begin(entry.run, entry.take, entry.arrived_s)
        except EngineError as error:
            entry.take(error)
        except Exception as error:  # a bug of the engine costs the request, and nobody else
            log.exception("Request %s failed", entry.request.request_id)
            entry.take(RequestFailed(f"{type(error).__name__}: {error}"))

    def _on_begun(self, entry: Entry[T]) -> None:
        entry.has_begun = True
        entry.stop_timer()
        now_s = time.monotonic()
        self._learn(entry, now_s)
        self._ahead.begin(entry.request.priority, entry.num_known_tokens, now_s)

    def _learn(self, entry: Entry[T], now_s: float) -> None:
        if entry.num_left == self._ahead.num_left:
            self._pace.note(now_s - entry.since_s, entry.num_tokens_ahead)

    def _leave(self, entry: Entry[T]) -> None:
        entry.end()
        self._queue.discard(entry)
        if entry.is_inside:
            self._inside.discard(entry)
            if not entry.has_begun:
                priority, num_tokens = entry.request.priority, entry.num_known_tokens
                self._ahead.leave(priority, num_tokens, time.monotonic())
        self._note_idle()
        self._admit()

    def _note_idle(self) -> None:
        if not (self._queue or self._inside or self._num_preparing):
            self._idle.set()
