"""What has arrived for one request and waits for its reader."""

from __future__ import annotations

import asyncio
from itertools import chain

from engines.base import TokenEvent
from engines.errors import EngineError


class Stream:
    """A buffer between the socket and one reader; a slow reader gets several events as one."""

    __slots__ = ("_error", "_events", "_reader")

    def __init__(self) -> None:
        self._events: list[TokenEvent] = []
        self._error: EngineError | None = None
        self._reader: asyncio.Future[None] | None = None

    def push(self, event: TokenEvent) -> None:
        """Add an event."""
        self._events.append(event)
        self._wake()

    def fail(self, error: EngineError) -> None:
        """End the stream with an error, which the reader gets after what already arrived."""
        self._error = error
        self._wake()

    async def next(self) -> TokenEvent:
        """Wait for an event and take all that is there as one; raises the error that ended it."""
        if not self._events and self._error is None:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        if self._events:
            events, self._events = self._events, []
            return events[0] if len(events) == 1 else merge(events)
        assert self._error is not None
        raise self._error

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


def merge(events: list[TokenEvent]) -> TokenEvent:
    """Join consecutive events of one request into the event one longer step would have given."""
    last = events[-1]
    logprobs = None
    if last.logprobs is not None:
        logprobs = tuple(chain.from_iterable(event.logprobs or () for event in events))
    return TokenEvent(
        tuple(chain.from_iterable(event.token_ids for event in events)),
        logprobs,
        last.finish_reason,
        last.num_cached_tokens,
        last.queued_s,
    )
