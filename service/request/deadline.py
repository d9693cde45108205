"""Until when a request may take, and what ends it then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

from service.errors import RequestError

TIMEOUT_HEADER = "X-Request-Timeout-Ms"

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Deadline:
    """When a request must have ended, on the running loop's clock."""

    at: float
    timeout_s: float  # what it was counted from, for the message

    def check(self) -> None:
        """Raise the error that ends the request once the time is up."""
        if asyncio.get_running_loop().time() >= self.at:
            raise self.error()

    def error(self) -> RequestError:
        """What a client is told."""
        return RequestError(
            f"The answer was not complete within {self.timeout_s:g} s, the time this request had; "
            f"raise {TIMEOUT_HEADER} or NIM_REQUEST_TIMEOUT_S, or ask for fewer tokens.",
            status=504,
            type="timeout_error",
            code="deadline_exceeded",
        )


async def in_time(deadline: Deadline | None, awaited: Awaitable[R]) -> R:
    """What it gives; raises the deadline's error where that would come too late."""
    if deadline is None:
        return await awaited
    try:
        async with asyncio.timeout_at(deadline.at):
            return await awaited
    except TimeoutError:
        raise deadline.error() from None


def until(deadline: Deadline | None, events: AsyncGenerator[R, None]) -> AsyncGenerator[R, None]:
    """The same events; in place of one that would come too late, the deadline's error."""
    return events if deadline is None else _until(deadline, events)


async def _until(deadline: Deadline, events: AsyncGenerator[R, None]) -> AsyncGenerator[R, None]:
    async with aclosing(events):
        while True:
            deadline.check()  # also when events are always there and nothing waits
            try:
                async with asyncio.timeout_at(deadline.at):
                    event = await anext(events)
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise deadline.error() from None
            yield event
