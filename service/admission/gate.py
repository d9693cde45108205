"""The way into the engine: quotas, deadlines, and an early look at the engine's queue.

The queue decides which requests wait too long (engines/queueing). What it expects is asked here
before a
body is read, so that a refusal costs nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engines.base import Engine, ExpectedWait
from engines.queueing.pace import retry_after_s
from service.admission.quotas import Quotas
from service.errors import UNAVAILABLE, RequestError
from service.request import Deadline, RequestContext

if TYPE_CHECKING:
    from service.answer.generation import Generation


@dataclass(frozen=True, slots=True)
class Bounds:
    """The operator's bounds: waiting, use of the KV cache, time, priority."""

    max_wait_s: float = 30.0  # in the engine's queue
    timeout_s: float | None = None  # of a whole request
    min_priority: int = 0  # the most urgent that a request may ask for


class Gate:
    """Decides whether a request may enter the engine; made once per process."""

    def __init__(self, bounds: Bounds | None = None, quotas: Quotas | None = None) -> None:
        self._bounds = bounds or Bounds()
        self._quotas = quotas or Quotas()

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
        await self._quotas.count(context)
        self._check(engine.expected_wait(context.tenant), context.deadline)

    @asynccontextmanager
    async def admit(self, engine: Engine, generation: Generation) -> AsyncIterator[None]:
        """Hold the generation's place in the caller's quota inside the block.

        Raises RequestError with Retry-After when the quota is used up, or the engine's queue is so
        long that the request would wait too long.
        """
        loop, context = asyncio.get_running_loop(), generation.plan.context
        begun_s = loop.time()
        self._check_priority(generation.plan.priority)
        self._check(engine.expected_wait(context.tenant), context.deadline)
        async with self._quotas.hold(generation):
            if len(generation.choices) == 1:  # of several some may have begun when one is refused
                generation.max_wait_s = self._bounds.max_wait_s - (loop.time() - begun_s)
            yield

    async def close(self) -> None:
        await self._quotas.close()

    def _check_priority(self, priority: int) -> None:
        if priority < self._bounds.min_priority:
            raise RequestError(
                f"priority is {priority}; the most urgent value allowed here is "
                f"{self._bounds.min_priority} (NIM_MIN_PRIORITY).",
                param="priority",
                code="invalid_value",
            )

    def _check(self, wait: ExpectedWait, deadline: Deadline | None) -> None:
        wait_s, limit_s = wait.sure_s, self._bounds.max_wait_s
        if wait_s > limit_s:
            raise self._refusal(
                f"the expected wait is {wait_s:.0f} s, longer than the limit of {limit_s:g} s",
                retry_after_s(wait, limit_s),
            )
        if deadline is not None and wait_s > deadline.timeout_s:
            raise self._refusal(
                f"the expected wait is {wait_s:.1f} s, longer than this request's timeout of "
                f"{deadline.timeout_s:g} s",
                retry_after_s(wait, deadline.timeout_s),
            )

    @staticmethod
    def _refusal(reason: str, retry_s: int) -> RequestError:
        return RequestError(
            f"The server is overloaded: {reason}. Retry in {retry_s} s.",
            status=503,
            type=UNAVAILABLE,
            code="overloaded",
            headers={"Retry-After": str(retry_s)},
        )
