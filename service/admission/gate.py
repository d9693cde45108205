"""The way into the engine: what cannot be answered in time is refused before it costs anything."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from engines.base import Engine, EngineStats
from engines.errors import EngineError, Overloaded
from service.admission.load import Load, Ticket
from service.admission.quotas import Quotas
from service.answer.plan import Plan
from service.errors import UNAVAILABLE, RequestError
from service.request import Deadline, RequestContext

if TYPE_CHECKING:
    from service.answer.generation import Generation

MOST_NEW_GRAMMARS: Final = 16  # of one tenant at a time; the engine has places for 64 of all
_STATS_AGE_S: Final = 0.25  # how old the engine's counts may get before they are asked for anew
_NEWS_S: Final = 0.1  # how often who waits for a first price looks whether it waited too long
_STALE_S: Final = 2.0  # older ones say nothing
_MAX_RETRY_S: Final = 60


@dataclass(frozen=True, slots=True)
class Bounds:
    """The operator's bounds: waiting, use of the KV cache, time, priority."""

    max_wait_s: float = 30.0  # for the first token
    max_kv_usage: float = 0.95
    timeout_s: float | None = None  # of a whole request
    min_priority: int = 0  # the most urgent that a request may ask for


class Gate:
    """Decides whether a request may enter the engine; made once per process."""

    def __init__(self, bounds: Bounds | None = None, quotas: Quotas | None = None) -> None:
        self._bounds = bounds or Bounds()
        self._quotas = quotas or Quotas()
        self._load = Load()
        self._stats: EngineStats | None = None
        self._stats_at = -math.inf
        self._asking: asyncio.Task[None] | None = None

    def deadline(self, timeout_s: float | None) -> Deadline | None:
        """The deadline of a request that has come now: the client's or the server's, the earlier
        one."""
        given = [s for s in (timeout_s, self._bounds.timeout_s) if s is not None]
        if not given:
            return None
        return Deadline(asyncio.get_running_loop().time() + min(given), min(given))

    async def count(self, context: RequestContext) -> None:
        """Count a request that costs the engine nothing, before anything of it is read.

        Raises RequestError with Retry-After.
        """
        await self._quotas.count(context)

    async def precheck(self, context: RequestContext, engine: Engine) -> None:
        """Count a request before anything of it is read; refuse what no body could get in.

        Raises RequestError with Retry-After.
        """
        self._refresh(engine)
        await self._quotas.count(context)
        least = self._load.ticket_for(1, self._bounds.min_priority, context.tenant)
        self._check(least, context.deadline)

    @asynccontextmanager
    async def admit(self, engine: Engine, generation: Generation) -> AsyncIterator[None]:
        """Hold the generation's place in the engine inside the block.

        Raises RequestError with Retry-After when the engine or the caller's quota is used up.
        """
        plan, context = generation.plan, generation.plan.context
        begun_s = asyncio.get_running_loop().time()
        self._check_priority(plan.priority)
        self._refresh(engine)
        ticket = self._load.ticket(plan, context.tenant)
        self._check(ticket, context.deadline)
        self._check_grammars(ticket)
        async with self._quotas.hold(generation):
            ticket = await self._known(plan, context)
            self._load.enter(ticket)
            generation.on_first_token = partial(self._load.begin, ticket)
            if len(generation.choices) == 1:  # of several some may have begun when one is refused
                generation.max_wait_s = self._bounds.max_wait_s - (ticket.entered_at - begun_s)
            try:
                yield
            except Overloaded:
                self._load.give_up(ticket, self._bounds.max_wait_s)
                raise
            finally:
                self._load.leave(ticket)
                if generation.outcome == "success":
                    self._load.end(generation.num_completion_tokens // len(generation.choices))

    async def close(self) -> None:
        """Stop asking the engine for its counts, and close the quotas."""
        if self._asking is not None:
            self._asking.cancel()
        await self._quotas.close()

    async def _known(self, plan: Plan, context: RequestContext) -> Ticket:
        """A ticket of now, for the quota may have taken time; and judged by what is known, for
        which a burst at the beginning has to wait."""
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        ticket = self._load.ticket(plan, context.tenant)
        while self._load.is_blind and ticket.new_grammar is None:
            await self._load.news(_NEWS_S)
            ticket = self._load.ticket(plan, context.tenant)
            self._check(ticket, context.deadline, loop.time() - begun_s)
        return ticket

    def _check_priority(self, priority: int) -> None:
        if priority < self._bounds.min_priority:
            raise RequestError(
                f"priority is {priority}: {self._bounds.min_priority} is the most urgent that this "
                "server lets a request be (NIM_MIN_PRIORITY).",
                param="priority",
                code="invalid_value",
            )

    def _check_grammars(self, ticket: Ticket) -> None:
        if ticket.new_grammar is None:
            return
        if self._load.num_new_grammars(ticket.tenant) >= MOST_NEW_GRAMMARS:
            raise RequestError(
                f"{MOST_NEW_GRAMMARS} requests with schemas or grammars that are new here wait for "
                "them to be compiled, which is the most for one caller; try again later.",
                status=429,
                type="rate_limit_error",
                code="too_many_new_grammars",
                headers={"Retry-After": "1"},
            )

    def _check(self, ticket: Ticket, deadline: Deadline | None, waited_s: float = 0.0) -> None:
        wait_s = waited_s + self._load.predicted_wait_s(ticket)
        bound_s = self._bounds.max_wait_s
        if wait_s > bound_s:
            raise self._refusal(
                f"The first token would come in about {wait_s:.0f} s, and this server lets nobody "
                f"wait longer than {bound_s:g} s",
                wait_s - bound_s,
            )
        if deadline is not None and wait_s > deadline.timeout_s:
            raise self._refusal(
                f"The first token would come in about {wait_s:.1f} s, after the "
                f"{deadline.timeout_s:g} s that this request has",
                wait_s - deadline.timeout_s,
            )
        if self._is_memory_full():
            raise self._refusal("The engine's memory is full and as much waits already", wait_s)

    def _is_memory_full(self) -> bool:
        """A full cache is what a busy engine should have; one whose queue only grows is not."""
        stats = self._stats
        if stats is None or asyncio.get_running_loop().time() - self._stats_at > _STALE_S:
            return False
        is_full = stats.kv_usage >= self._bounds.max_kv_usage
        return is_full and stats.num_waiting >= max(1, stats.num_running)

    @staticmethod
    def _refusal(reason: str, retry_s: float) -> RequestError:
        return RequestError(
            f"{reason}; try again later.",
            status=503,
            type=UNAVAILABLE,
            code="overloaded",
            headers={"Retry-After": str(min(max(math.ceil(retry_s), 1), _MAX_RETRY_S))},
        )

    def _refresh(self, engine: Engine) -> None:
        """Ask the engine for its counts, which nobody waits for."""
        is_old = asyncio.get_running_loop().time() - self._stats_at > _STATS_AGE_S
        if is_old and (self._asking is None or self._asking.done()):
            self._asking = asyncio.create_task(self._ask(engine), name="engine-stats")

    async def _ask(self, engine: Engine) -> None:
        with contextlib.suppress(EngineError):  # a dead engine is refused elsewhere
            self._stats = await engine.stats()
            self._stats_at = asyncio.get_running_loop().time()
