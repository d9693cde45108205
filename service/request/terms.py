"""Under what conditions the admitted request at hand generates: for whom, and until when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import dataclass

from engines.base import TokenEvent
from service.errors import RequestError

TIMEOUT_HEADER = "X-Request-Timeout-Ms"


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


def _nothing() -> None:
    return


@dataclass(frozen=True, slots=True)
class Terms:
    """Set on admission; every generation that the request starts heeds them."""

    tenant: str = ""  # whose share of the engine it takes; empty: nobody's in particular
    deadline: Deadline | None = None
    on_first_token: Callable[[], None] = _nothing


_current: ContextVar[Terms] = ContextVar("terms")
_NONE = Terms()


def current() -> Terms:
    """The terms of the request that the running task belongs to."""
    return _current.get(_NONE)


def enter(terms: Terms) -> None:
    """Set the terms for the running task and those it starts."""
    _current.set(terms)


def until_deadline(
    events: AsyncGenerator[TokenEvent, None],
) -> AsyncGenerator[TokenEvent, None]:
    """The same events; in place of one that would come too late, the deadline's error."""
    deadline = current().deadline
    return events if deadline is None else _until(deadline, events)


async def _until(
    deadline: Deadline, events: AsyncGenerator[TokenEvent, None]
) -> AsyncGenerator[TokenEvent, None]:
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
