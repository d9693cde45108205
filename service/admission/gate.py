"""The way into the engine: quotas, deadlines, and an early look at the engine's queue.

Quotas bound what one caller uses: requests and tokens a minute, and requests at a time. The queue
decides which requests wait too long (engines/queueing). What it expects is asked here before a body
is read, so that a refusal costs nothing.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from auth.base import PrincipalLimits, Scope
from engines.base import Engine, ExpectedWait
from engines.queueing.fair_queue import retry_after_s
from service.admission.concurrency import ConcurrencyLimit
from service.admission.counters import MinuteCounters, Standing
from service.admission.counts import Counts, OwnCounts
from service.answer.tiers import Tier, flex_unavailable
from service.errors import UNAVAILABLE, RequestError
from service.request import Deadline, RequestContext

if TYPE_CHECKING:
    from service.answer.generation import Generation

_NOBODY = "anonymous"  # callers of an open API, counted together
_NO_LIMITS = PrincipalLimits()
_NO_BOUND = -(1 << 31)


class Quotas:
    """Keeps callers to their limits; made once per process.

    `defaults` apply to callers without their own limits; `counts`: of all API workers of this
    server.
    """

    def __init__(
        self,
        defaults: PrincipalLimits = _NO_LIMITS,
        counters: MinuteCounters | None = None,
        concurrency: ConcurrencyLimit | None = None,
        counts: Counts | None = None,
    ) -> None:
        self._defaults = defaults
        self._counters = counters or MinuteCounters()
        self._concurrency = concurrency or ConcurrencyLimit()
        self._counts = counts or OwnCounts()  # tokens that were generated beyond the limit

    async def count(self, context: RequestContext) -> None:
        """Count one request and tell the caller what is left; raises RequestError at the limit."""
        who, limits = _identity(context)
        if per_min := self._tokens_per_min(limits):
            _set_headers(context, "tokens", await self._counters.take("tokens", who, per_min, 0))
        if per_min := _or(limits.requests_per_min, self._defaults.requests_per_min):
            standing = await self._counters.take("requests", who, per_min, 1)
            _set_headers(context, "requests", standing)
            self._check("requests", standing, 1)

    @asynccontextmanager
    async def hold(self, generation: Generation) -> AsyncIterator[None]:
        """Count what runs inside the block; raises RequestError when it is too much.

        A prompt's tokens count at the beginning, those of the answer at the end.
        """
        who, limits = _identity(generation.plan.context)
        at_once = _or(limits.max_concurrent, self._defaults.max_concurrent)
        per_min = self._tokens_per_min(limits)
        async with self._place(who, at_once):
            if per_min:
                await self._take_tokens(who, per_min, generation)
            try:
                yield
            finally:
                if per_min:
                    self._counts.add(_owed(who), generation.num_completion_tokens)

    async def close(self) -> None:
        await self._counters.close()
        await self._concurrency.close()

    @asynccontextmanager
    async def _place(self, who: str, at_once: int | None) -> AsyncIterator[None]:
        if not at_once:
            yield
            return
        async with self._concurrency.hold(who, at_once) as has_place:
            if not has_place:
                message = f"{at_once} requests of this caller are running, which is the limit"
                raise self._refusal(f"{message}; wait until one has ended.", 1.0)
            yield

    async def _take_tokens(self, who: str, per_min: int, generation: Generation) -> None:
        num_prompt = generation.num_prompt_tokens
        wanted = num_prompt + self._counts.pop(_owed(who))
        # No more than the whole limit can be taken at once: the rest stays owed.
        standing = await self._counters.take("tokens", who, per_min, min(wanted, per_min))
        _set_headers(generation.plan.context, "tokens", standing)
        owed = wanted - (per_min if standing.retry_s is None else num_prompt)
        if owed > 0:
            self._counts.add(_owed(who), owed)
        self._check("tokens", standing, wanted)

    def _tokens_per_min(self, limits: PrincipalLimits) -> int | None:
        return _or(limits.tokens_per_min, self._defaults.tokens_per_min)

    def _check(self, kind: str, standing: Standing, wanted: int) -> None:
        if standing.retry_s is None:
            return
        raise self._refusal(
            f"Rate limit reached: {standing.limit} {kind} per minute, {standing.remaining} "
            f"left, {wanted} needed; try again in {math.ceil(standing.retry_s)} s.",
            standing.retry_s,
        )

    @staticmethod
    def _refusal(message: str, retry_s: float) -> RequestError:
        return RequestError(
            message,
            status=429,
            type="rate_limit_error",
            code="rate_limit_exceeded",
            headers={"Retry-After": str(max(math.ceil(retry_s), 1))},
        )


def _or(own: int | None, default: int | None) -> int | None:
    return default if own is None else own


def _owed(who: str) -> str:
    return f"owed:{who}"


def _identity(context: RequestContext) -> tuple[str, PrincipalLimits]:
    principal = context.principal
    return (principal.id, principal.limits or _NO_LIMITS) if principal else (_NOBODY, _NO_LIMITS)


def _set_headers(context: RequestContext, kind: str, standing: Standing) -> None:
    """Set the rate-limit headers as OpenAI names them."""
    headers = context.notes.headers
    headers[f"x-ratelimit-limit-{kind}"] = str(standing.limit)
    headers[f"x-ratelimit-remaining-{kind}"] = str(standing.remaining)
    headers[f"x-ratelimit-reset-{kind}"] = _duration(standing.reset_s)


def _duration(seconds: float) -> str:
    """As OpenAI writes it: 6m0s, 1.5s, 120ms."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(math.ceil(seconds * 1000) / 1000, 60)
    shown = f"{rest:.3f}".rstrip("0").rstrip(".")
    return f"{minutes:.0f}m{shown}s" if minutes else f"{shown}s"


@dataclass(frozen=True, slots=True)
class Bounds:
    """The operator's bounds: waiting, use of the KV cache, time, priority."""

    max_wait_s: float = 30.0  # in the engine's queue
    timeout_s: float | None = None  # of a whole request
    min_priority: int = 0  # the most urgent that a request may ask for


class Budgets:
    """What callers may use in a day or a month; here they have no bound (parts/usage)."""

    async def check(self, context: RequestContext) -> None:
        """Raise RequestError for a caller whose budget is used up."""

    @asynccontextmanager
    async def hold(self, generation: Generation) -> AsyncIterator[None]:
        """Note what runs inside the block; raises RequestError as check() does."""
        yield

    async def close(self) -> None:
        """Keep what was counted."""


class Gate:
    """Decides whether a request may enter the engine; made once per process."""

    def __init__(self, bounds: Bounds | None = None, quotas: Quotas | None = None) -> None:
        self.budgets = Budgets()
        self._bounds = bounds or Bounds()
        self._quotas = quotas or Quotas()

    def deadline(self, timeout_s: float | None) -> Deadline | None:
        """The deadline of a request that has come now: the client's or the server's, the earlier
        one."""
        given = [s for s in (timeout_s, self._bounds.timeout_s) if s is not None]
        if not given:
            return None
        limit_s, now = min(given), asyncio.get_running_loop().time()
        return Deadline(now + limit_s, limit_s, is_callers=limit_s == timeout_s)

    async def count(self, context: RequestContext) -> None:
        """Count a request that costs the engine nothing, before anything of it is read.

        Raises RequestError with Retry-After.
        """
        await self._quotas.count(context)

    async def precheck(self, context: RequestContext, engine: Engine) -> None:
        """Count a request before anything of it is read; refuse what no body could get in.

        Raises RequestError with Retry-After.
        """
        await self._quotas.count(context)
        await self.budgets.check(context)
        if not context.is_detached and self.most_urgent(context) >= 0:  # else it may come first
            self._check(engine.expected_wait(context.tenant), context.deadline)

    def most_urgent(self, context: RequestContext) -> int:
        """The lowest `priority` that a caller may ask for."""
        scopes = context.principal.scopes if context.principal else ()
        return _NO_BOUND if Scope.PRIORITY in scopes else self._bounds.min_priority

    @asynccontextmanager
    async def admit(self, engine: Engine, generation: Generation) -> AsyncIterator[None]:
        """Hold the generation's place in the caller's quota inside the block.

        Raises RequestError with Retry-After when the quota is used up, or the engine's queue is so
        long that the request would wait too long.
        """
        async with self.budgets.hold(generation), self._held(engine, generation):
            yield

    async def close(self) -> None:
        await self._quotas.close()
        await self.budgets.close()

    @asynccontextmanager
    async def _held(self, engine: Engine, generation: Generation) -> AsyncIterator[None]:
        loop, plan = asyncio.get_running_loop(), generation.plan
        context, begun_s = plan.context, loop.time()
        if context.is_detached:
            async with self._quotas.hold(generation):
                yield
            return
        if plan.priority >= 0:
            is_flex = plan.tier is Tier.FLEX
            wait = engine.expected_wait(context.tenant)
            self._check(wait, context.deadline, is_flex=is_flex)
        async with self._quotas.hold(generation):
            if len(generation.choices) == 1:  # of several some may have begun when one is refused
                generation.max_wait_s = self._bounds.max_wait_s - (loop.time() - begun_s)
            yield

    def _check(
        self, wait: ExpectedWait, deadline: Deadline | None, *, is_flex: bool = False
    ) -> None:
        wait_s, limit_s = wait.sure_s, self._bounds.max_wait_s
        if wait_s > limit_s:
            raise self._refusal(
                f"the expected wait is {wait_s:.0f} s, longer than the limit of {limit_s:g} s",
                retry_after_s(wait, limit_s),
                is_flex=is_flex,
            )
        if deadline is not None and wait_s > deadline.timeout_s:
            raise self._refusal(
                f"the expected wait is {wait_s:.1f} s, longer than this request's timeout of "
                f"{deadline.timeout_s:g} s",
                retry_after_s(wait, deadline.timeout_s),
                is_flex=is_flex,
            )

    @staticmethod
    def _refusal(reason: str, retry_s: int, *, is_flex: bool) -> RequestError:
        message = f"The server is overloaded: {reason}. Retry in {retry_s} s."
        if is_flex:
            return flex_unavailable(message, retry_s)
        return RequestError(
            message,
            status=503,
            type=UNAVAILABLE,
            code="overloaded",
            headers={"Retry-After": str(retry_s)},
        )
