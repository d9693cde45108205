"""What has arrived for one request and waits for its reader."""

from __future__ import annotations

import asyncio
from itertools import chain
from typing import Final

from engines.base import TokenEvent
from engines.errors import EngineError

# Counted in tokens, and with log-probabilities in tokens and their rivals.
MOST_WAITING: Final = 65536  # some megabytes
MOST_AT_ONCE: Final = 2048  # what takes milliseconds to turn into an answer


class Stream:
    """The events of one request between the socket and their reader; a slow reader gets several as
    one."""

    __slots__ = ("_error", "_events", "_first", "_reader", "_size")

    def __init__(self) -> None:
        self._events: list[TokenEvent] = []
        self._first: TokenEvent | None = None  # ever
        self._size = 0  # of all events that wait
        self._error: EngineError | None = None
        self._reader: asyncio.Future[None] | None = None

    @property
    def is_overrun(self) -> bool:
        """Whether more tokens wait than a reader may leave unread."""
        return self._size > MOST_WAITING

    def push(self, event: TokenEvent) -> None:
        """Add an event of the engine."""
        if self._first is None:
            self._first = event
        self._events.append(event)
        self._size += _size_of(event)
        self._wake()

    def push_token(self, token_id: int) -> None:
        """Add an event that has one token and nothing else that is new."""
        first = self._first
        assert first is not None, "the first event is whole"
        self._events.append(
            TokenEvent((token_id,), None, None, first.num_cached_tokens, first.queued_s)
        )
        self._size += 1
        self._wake()

    def fail(self, error: EngineError) -> None:
        """End the stream with an error, which the reader gets after what already arrived."""
        self._error = error
        self._wake()

    async def next(self) -> TokenEvent:
        """Wait for an event and take what is there as one; raises the error that ended it, once."""
        if not self._events and self._error is None:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        if self._events:
            events = self._take()
            return events[0] if len(events) == 1 else merge(events)
        error, self._error = self._error, None
        assert error is not None
        try:
            raise error
        finally:  # its traceback has this frame: else a cycle, left to the garbage collector
            del error

    def _take(self) -> list[TokenEvent]:
        """All of it, or as much as may be taken at once."""
        events = self._events
        if self._size <= MOST_AT_ONCE:
            self._events, self._size = [], 0
            return events
        number = size = 0
        for event in events:
            if number and size + _size_of(event) > MOST_AT_ONCE:
                break
            number, size = number + 1, size + _size_of(event)
        self._events, self._size = events[number:], self._size - size
        return events[:number]

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


def _size_of(event: TokenEvent) -> int:
    if event.logprobs is None:
        return len(event.token_ids)
    return sum(1 + len(logprob.top) for logprob in event.logprobs)


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
