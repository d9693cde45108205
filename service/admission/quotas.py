"""What one caller may use: requests and tokens a minute, and requests at a time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from auth.base import PrincipalLimits
from service.admission.concurrency import ConcurrencyLimit
from service.admission.counters import MinuteCounters, Standing
from service.errors import RequestError
from service.request import RequestContext

if TYPE_CHECKING:
    from service.answer.generation import Generation

_NOBODY = "anonymous"  # callers of an open API, counted together
_NO_LIMITS = PrincipalLimits()


class Quotas:
    """Keeps callers to their limits; made once per process.

    `defaults` apply to callers without their own limits; `num_sharers` processes that do
    not count together have each its part of every limit.
    """

    def __init__(
        self,
        defaults: PrincipalLimits = _NO_LIMITS,
        counters: MinuteCounters | None = None,
        concurrency: ConcurrencyLimit | None = None,
        num_sharers: int = 1,
    ) -> None:
        self._defaults = defaults
        self._counters = counters or MinuteCounters()
        self._num_sharers = num_sharers
        self._concurrency = concurrency or ConcurrencyLimit()
        self._owed: Counter[str] = Counter()  # tokens that were generated beyond the limit

    async def count(self, context: RequestContext) -> None:
        """Count one request and tell the caller what is left; raises RequestError at the limit."""
        who, limits = _identity(context)
        if per_min := self._tokens_per_min(limits):
            _tell(context, "tokens", await self._counters.take("tokens", who, per_min, 0))
        if per_min := self._share(limits.requests_per_min, self._defaults.requests_per_min):
            standing = await self._counters.take("requests", who, per_min, 1)
            _tell(context, "requests", standing)
            self._check("requests", standing, 1)

    @asynccontextmanager
    async def hold(self, generation: Generation) -> AsyncIterator[None]:
        """Count what runs inside the block; raises RequestError when it is too much.

        A prompt's tokens count at the beginning, those of the answer at the end.
        """
        who, limits = _identity(generation.plan.context)
        at_once = self._share(limits.max_concurrent, self._defaults.max_concurrent)
        per_min = self._tokens_per_min(limits)
        async with self._place(who, at_once):
            if per_min:
                await self._take_tokens(who, per_min, generation)
            try:
                yield
            finally:
                if per_min:
                    self._owed[who] += generation.num_completion_tokens

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
        wanted = num_prompt + self._owed.pop(who, 0)
        # No more than the whole limit can be taken at once: the rest stays owed.
        standing = await self._counters.take("tokens", who, per_min, min(wanted, per_min))
        _tell(generation.plan.context, "tokens", standing)
        owed = wanted - (per_min if standing.retry_s is None else num_prompt)
        if owed > 0:
            self._owed[who] += owed
        self._check("tokens", standing, wanted)

    def _tokens_per_min(self, limits: PrincipalLimits) -> int | None:
        return self._share(limits.tokens_per_min, self._defaults.tokens_per_min)

    def _share(self, own: int | None, default: int | None) -> int | None:
        limit = default if own is None else own
        return None if limit is None else -(-limit // self._num_sharers)

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


def _identity(context: RequestContext) -> tuple[str, PrincipalLimits]:
    principal = context.principal
    return (principal.id, principal.limits or _NO_LIMITS) if principal else (_NOBODY, _NO_LIMITS)


def _tell(context: RequestContext, kind: str, standing: Standing) -> None:
    """Set OpenAI's rate-limit headers."""
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
