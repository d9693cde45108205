"""Which request may enter an engine, and when: the same queue in front of every engine.

Tenants' fairness, the length of the queue, draining and waiting are dealt with here and nowhere
else, so that an engine only has to run what it is given (`Runner`). It is given no more than it can
begin soon: what lies within it is served in its own order, which knows no tenants. A request with
a limit is refused when its time in the queue is up, or at once when that is sure to happen. The
wait that the queue expects of later requests goes to the clients (`expected_waits`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Final, Generic

from engines.base import (
    NO_WAIT,
    NOBODY,
    EngineInfo,
    EngineRequest,
    EngineStats,
    ExpectedWait,
    ExpectedWaits,
    OnEntered,
    Outcome,
    Receive,
    Runner,
    TokenEvent,
    ignore,
    tokens_alone,
)
from engines.errors import (
    EngineDead,
    EngineDraining,
    EngineError,
    Overloaded,
    QueueFull,
    RequestFailed,
)
from engines.queueing.adapter_counts import adapter_levels
from engines.queueing.fair_queue import (
    GENERATED_COST,
    Entry,
    FairQueue,
    InFlightPrompts,
    Pace,
    Running,
    T,
    retry_after_s,
)
from engines.queueing.own_order import ByArrival, ShortestFirst

# Prompts that an engine may hold before their first token: what two steps compute, for it begins
# the second before the tokens of the first are seen out here; and two that are longer than a step.
_STEPS_AHEAD: Final = 2
_REQUESTS_AHEAD: Final = 2
_URGENT_SHARE: Final = 4  # a fourth of the queue is not for what is less urgent than usual
_PLACES_SHARE: Final = 32  # and this share of the engine's places
_USUAL_ANSWER: Final = 256.0  # tokens, before one has ended
_MAX_REPORTED: Final = 64  # tenants whose waits the clients get

log = logging.getLogger(__name__)


class QueuedEngine(Generic[T]):
    """A runner behind its queue; implements engines.base.Engine.

    All methods belong to the event loop that start() ran in.
    """

    def __init__(
        self,
        runner: Runner[T],
        max_num_waiting: int | None = None,
        idle: asyncio.Event | None = None,
        own_order: type[ByArrival[Entry[T]]] = ShortestFirst,
    ) -> None:
        """`max_num_waiting`: None for any number; `idle`: set whenever there are no requests;
        `own_order`: of one tenant's requests."""
        self._runner = runner
        self._max_num_waiting = max_num_waiting
        self._queue: FairQueue[Entry[T]] = FairQueue(
            lambda: own_order(_STEPS_AHEAD * self._max_step_tokens)
        )
        self._inside: set[Entry[T]] = set()
        self._ahead = InFlightPrompts()
        self._pace = Pace()
        self._cached_share = Running(0.0, 1000.0, 0.95)  # of prompts' tokens
        self._answer_tokens = Running(_USUAL_ANSWER, 1.0, 0.9)
        self._num_preparing = 0
        self._max_inside = 0
        self._max_step_tokens = 0
        self._is_admitting = False
        self._is_stopped = False
        self._is_draining = False
        self._idle = idle or asyncio.Event()
        self._idle.set()

    @property
    def info(self) -> EngineInfo:
        return self._runner.info

    async def start(self) -> None:
        self._is_stopped = False
        await self._runner.start()
        self.resize(self._runner.info)

    def resize(self, info: EngineInfo) -> None:
        """Give the engine as much as it can take now: several engines as one come and go."""
        self._max_inside = info.max_num_seqs
        self._max_step_tokens = info.max_num_batched_tokens
        self._admit()

    async def open(self, request: EngineRequest, receive: Receive) -> Entry[T]:
        """Queue a request, of which `receive` then hears as from a Runner; raises EngineError.

        The caller that opens it closes it.
        """
        if self._is_draining:
            raise EngineDraining("the engine is stopping and takes no new requests")
        self._check_room(request, self._num_preparing)
        arrived_s = time.monotonic()
        self._check_wait(request, 1, self._usual_work)
        self._num_preparing += 1
        self._idle.clear()
        try:
            run = await self._prepare(request)
            entry = Entry(self._on_outcome, request, run, receive, arrived_s)
            self._add(entry)
        finally:
            self._num_preparing -= 1
            self._note_idle()
        self._admit()
        if not entry.is_inside and entry.is_open and request.max_wait_s is not None:
            left_s = arrived_s + request.max_wait_s - time.monotonic()
            loop = asyncio.get_running_loop()
            entry.too_late = loop.call_later(left_s, self._refuse, entry)
        return entry

    def expected_wait(self, tenant: str, priority: int = 0) -> ExpectedWait:
        """How long a short request of a tenant would have to wait in the queue."""
        return self._expected(tenant, priority, 1, self._usual_work)

    def expected_waits(self) -> ExpectedWaits:
        """The same of those tenants that have most requests waiting, and of all others."""
        if not self._queue:
            return ExpectedWaits()
        tenants = self._queue.busiest_tenants(_MAX_REPORTED)
        others = self.expected_wait(NOBODY)
        return ExpectedWaits(others, {name: self.expected_wait(name) for name in tenants})

    def close(self, entry: Entry[T]) -> None:
        """Abort the request if it has not ended."""
        if entry.is_open:
            if entry.is_inside:
                self._runner.abort(entry.run)
            self._leave(entry)

    async def generate(
        self, request: EngineRequest, on_entered: OnEntered = ignore
    ) -> AsyncGenerator[TokenEvent, None]:
        """Yield one event for each step that added a token."""
        outcomes: asyncio.Queue[Outcome] = asyncio.Queue()
        last = TokenEvent(())
        entry = await self.open(request, outcomes.put_nowait)
        try:
            if entry.is_inside:
                on_entered()
            elif entry.is_open:
                entry.on_entered = on_entered
            while True:
                outcome = await outcomes.get()
                if isinstance(outcome, EngineError):
                    raise outcome
                if isinstance(outcome, int):
                    outcome = tokens_alone((outcome,), last)
                last = outcome
                yield outcome
                if outcome.finish_reason is not None:
                    return
        finally:
            self.close(entry)

    async def stats(self) -> EngineStats:
        """Count; requests that wait in this queue or for their grammar count as waiting."""
        stats = await self._runner.stats()
        num_waiting = stats.num_waiting + len(self._queue) + self._num_preparing
        levels = {**stats.levels, **adapter_levels(self._inside, self._queue)}
        return replace(stats, num_waiting=num_waiting, levels=levels)

    async def check_health(self) -> None:
        """Raise EngineDead before start(), after stop(), and when the engine gave up."""
        await self._runner.check_health()

    async def drain(self) -> None:
        self._is_draining = True
        await self._idle.wait()

    async def stop(self) -> None:
        self._is_stopped = True
        for entry in list(self._queue):
            entry.take(EngineDead("the engine has been stopped"))
        await self._runner.stop()

    def _on_outcome(self, entry: Entry[T], outcome: Outcome) -> None:
        """Count the engine's outcome for an open entry, and pass it on."""
        if isinstance(outcome, int):  # of most tokens
            entry.num_generated += 1
            self._queue.charge(entry.request.tenant, GENERATED_COST)
            entry.receive(outcome)
            return
        is_last = isinstance(outcome, EngineError) or outcome.finish_reason is not None
        if not isinstance(outcome, EngineError):
            tenant = entry.request.tenant
            entry.num_generated += len(outcome.token_ids)
            self._queue.charge(tenant, GENERATED_COST * len(outcome.token_ids))
            if not entry.has_begun:
                self._queue.charge(tenant, -outcome.num_cached_tokens)
                self._cached_share.note(outcome.num_cached_tokens, entry.num_known_tokens)
                self._on_begun(entry)
                if not is_last:
                    self._admit()
            if is_last:
                self._answer_tokens.note(entry.num_generated, 1.0)
        entry.receive(outcome)
        if is_last and entry.is_open:
            self._leave(entry)

    def _add(self, entry: Entry[T]) -> None:
        if self._is_stopped:
            raise EngineDead("the engine has been stopped")
        request = entry.request
        self._check_room(request, self._num_preparing - 1)
        known = entry.num_known_tokens
        num_cached = self._runner.num_cached_tokens(entry.run)
        if num_cached is None:
            num_cached = round(known * self._cached_share.value)
        entry.num_expected_tokens = max(1, known - num_cached)
        entry.is_long = entry.num_expected_tokens > self._max_step_tokens
        entry.work = self._work_of(entry.num_expected_tokens, request.sampling.max_tokens)
        self._check_wait(request, entry.num_expected_tokens, entry.work)
        self._queue.add(
            entry,
            request.priority,
            request.tenant,
            num_tokens=entry.num_expected_tokens,
            is_long=entry.is_long,
            work=entry.work,
        )
        self._note_pace()

    def _check_room(self, request: EngineRequest, num_preparing: int) -> None:
        if self._max_num_waiting is None:
            return
        limit = self._max_num_waiting
        if request.priority > 0:
            limit -= limit // _URGENT_SHARE
        if not self._queue.has_room(request.tenant, limit - num_preparing):
            raise QueueFull(
                f"the queue is full: {len(self._queue) + num_preparing} requests are waiting "
                f"and max_num_waiting is {self._max_num_waiting}; try again later",
                retry_s=1,
            )

    def _admit(self) -> None:
        """Start as many requests as the engine can take now."""
        if self._is_admitting or self._is_stopped:
            return  # called back by the engine, from below
        self._is_admitting = True
        try:
            while (entry := self._next()) is not None:
                self._enter(entry)
            self._note_pace()
        finally:
            self._is_admitting = False

    def _next(self) -> Entry[T] | None:
        """Take the request that enters the engine now: the head, or another where only its length
        or its low priority keeps it out."""
        if not self._queue or len(self._inside) >= self._max_inside:
            return None
        head = self._queue.head()
        if self._may_enter(head):
            return self._queue.take()
        other = self._queue.urgent_head() if head.request.priority > 0 else None
        if other is None and head.is_long:
            other = self._queue.short_head()
        return self._queue.take(other) if other is not None and self._may_enter(other) else None

    @property
    def _is_for_urgent(self) -> bool:
        """Whether the last free places are left: long answers could hold all of them for long."""
        return self._max_inside - len(self._inside) <= self._max_inside // _PLACES_SHARE

    def _may_enter(self, entry: Entry[T]) -> bool:
        """Whether the engine would begin it soon; the less urgent ahead do not count."""
        if entry.request.priority > 0 and self._is_for_urgent:
            return False
        num_requests, num_tokens = self._ahead.of(entry.request.priority, is_long=entry.is_long)
        if num_requests < _REQUESTS_AHEAD:
            return True
        num_tokens += entry.num_expected_tokens
        return not entry.is_long and num_tokens <= _STEPS_AHEAD * self._max_step_tokens

    async def _prepare(self, request: EngineRequest) -> T:
        """Have the request checked and its grammar compiled, which is waiting too."""
        try:
            async with asyncio.timeout(request.max_wait_s):
                return await self._runner.prepare(request)
        except TimeoutError:
            raise self._overloaded(request, 1, self._usual_work) from None

    def _work_of(self, num_tokens: float, max_tokens: float) -> float:
        return num_tokens + GENERATED_COST * min(max_tokens, self._answer_tokens.value)

    @property
    def _usual_work(self) -> float:
        """Of a request of which nothing is known: one that waits, on the average, or an answer."""
        return self._work_of(1, self._answer_tokens.value)

    def _check_wait(self, request: EngineRequest, num_tokens: int, work: float) -> None:
        """Refuse a request of this length that is sure to wait too long."""
        if request.max_wait_s is None:
            return
        expected = self._expected(request.tenant, request.priority, num_tokens, work)
        if expected.sure_s > request.max_wait_s:
            raise self._overloaded(request, num_tokens, work)

    def _expected(self, tenant: str, priority: int, num_tokens: int, work: float) -> ExpectedWait:
        if not self._queue:
            return NO_WAIT
        now_s = time.monotonic()
        self._note_pace()
        oldest_s = now_s - self._queue.oldest().queued_s
        before = self._queue.work_before(tenant, priority, work, num_tokens)
        return self._pace.expected(before, oldest_s)

    def _note_pace(self) -> None:
        is_busy = bool(self._queue) or len(self._inside) >= self._max_inside
        self._pace.advance(time.monotonic(), is_busy=is_busy)

    def _refuse(self, entry: Entry[T]) -> None:
        entry.take(self._overloaded(entry.request, entry.num_expected_tokens, entry.work))

    def _overloaded(self, request: EngineRequest, num_tokens: int, work: float) -> Overloaded:
        """The refusal of a request, with the time after which the same would be served."""
        limit_s = request.max_wait_s or 0.0
        expected = self._expected(request.tenant, request.priority, num_tokens, work)
        retry_s = retry_after_s(expected, limit_s)
        return Overloaded(
            f"The server is overloaded: the request would wait longer than the limit of "
            f"{limit_s:g} s (NIM_MAX_QUEUE_WAIT_S). Retry in {retry_s} s.",
            retry_s=retry_s,
        )

    def _enter(self, entry: Entry[T]) -> None:
        # What turns out to be cached is given back with the first token.
        self._queue.charge(entry.request.tenant, entry.num_known_tokens)
        self._pace.note(entry.work)
        entry.stop_timer()
        entry.is_inside = True
        entry.on_entered()
        self._inside.add(entry)
        self._ahead.count(entry.request.priority, 1, entry.num_expected_tokens, entry.is_long)
        try:
            self._runner.begin(entry.run, entry.take, entry.arrived_s)
        except EngineError as error:
            entry.take(error)
        except Exception as error:  # a bug of the engine costs this request only
            log.exception("Request %s failed", entry.request.request_id)
            entry.take(RequestFailed(f"{type(error).__name__}: {error}"))

    def _on_begun(self, entry: Entry[T]) -> None:
        entry.has_begun = True
        self._count_out(entry)

    def _count_out(self, entry: Entry[T]) -> None:
        self._ahead.count(entry.request.priority, -1, -entry.num_expected_tokens, entry.is_long)

    def _leave(self, entry: Entry[T]) -> None:
        entry.end()
        self._queue.discard(entry)
        if entry.is_inside:
            self._inside.discard(entry)
            if not entry.has_begun:
                self._count_out(entry)
        self._note_pace()
        self._note_idle()
        self._admit()

    def _note_idle(self) -> None:
        if not (self._queue or self._inside or self._num_preparing):
            self._idle.set()
