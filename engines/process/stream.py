"""What has arrived for one request and waits for its reader, bounded in bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import chain
from typing import Final

import msgspec

from engines.base import TokenEvent, tokens_alone
from engines.errors import EngineError, Paused, SlowReader

MOST_AT_ONCE: Final = 512  # tokens, or log-probabilities: what takes milliseconds to encode

MOST_BYTES: Final = 1 << 20  # of one stream
MOST_BYTES_OF_ALL: Final = 128 << 20  # of all streams of a process

# Measured with tracemalloc on CPython 3.11 and rounded up.
_TOKEN_BYTES: Final = 48
_EVENT_BYTES: Final = 240
_LOGPROB_BYTES: Final = 150
_RIVAL_BYTES: Final = 110

_encoder: Final = msgspec.msgpack.Encoder()
_buffer: Final = bytearray()  # encode() alone would keep what it allocated, half of it empty
_decode: Final = msgspec.msgpack.Decoder(TokenEvent).decode

# A token with nothing else to tell waits as its id alone, and an event with log-probabilities that
# waits behind another one encoded: an eighth of the memory, and nothing for the garbage collector.
Waiting = TokenEvent | int | bytes


class Unread:
    """The streams of one process and the bytes that wait in them.

    A stream with more than `most_bytes_of_one` is paused until its reader has read them. When the
    streams exceed `most_bytes` together, the one with the largest backlog is cut.
    """

    def __init__(
        self, most_bytes: int = MOST_BYTES_OF_ALL, most_bytes_of_one: int = MOST_BYTES
    ) -> None:
        self.num_bytes = 0
        self.on_pause: Callable[[], None] = _nothing  # called for each stream that is paused
        self.on_cut: Callable[[], None] = _nothing  # called for each stream that is cut
        self._most_bytes = most_bytes
        self._most_bytes_of_one = most_bytes_of_one
        self._streams: set[Stream] = set()

    def enter(self, stream: Stream) -> None:
        self._streams.add(stream)

    def leave(self, stream: Stream) -> None:
        """Stop counting a stream; it may have been removed already."""
        self._streams.discard(stream)

    def check(self, stream: Stream) -> None:
        """Pause `stream` if it is over its bound; cut the largest while all are over theirs."""
        if stream.num_bytes > self._most_bytes_of_one and not stream.has_ended:
            stream.pause()
            self.on_pause()
        while self.num_bytes > self._most_bytes:
            max(self._streams, key=lambda each: each.num_bytes).cut()
            self.on_cut()


def _nothing() -> None:
    return


class Stream:
    """The events of one request between the socket and their reader; a slow reader gets several as
    one."""

    __slots__ = (
        *("_abort", "_error", "_events", "_last", "_log_cut", "_reader", "_unread"),
        *("has_ended", "num_bytes"),
    )

    def __init__(
        self, unread: Unread, abort: Callable[[], None], log_cut: Callable[[int], None]
    ) -> None:
        """`abort`: ends the request in the engine; `log_cut`: gets the number of unread bytes."""
        self.num_bytes = 0  # that wait
        self.has_ended = False  # nothing more comes from the engine
        self._unread = unread
        self._abort = abort
        self._log_cut = log_cut
        self._events: list[Waiting] = []
        self._last: TokenEvent | None = None  # that was whole
        self._error: EngineError | None = None
        self._reader: asyncio.Future[None] | None = None
        unread.enter(self)

    def push(self, event: TokenEvent) -> None:
        self._last = event
        self.has_ended = event.finish_reason is not None
        waiting: Waiting = event
        if self._events and event.logprobs:
            _encoder.encode_into(event, _buffer)
            waiting = bytes(_buffer)
        self._events.append(waiting)
        self._grow(_bytes_of(waiting))

    def push_token(self, token_id: int) -> None:
        """Add an event that has one token and nothing else that is new."""
        assert self._last is not None, "the first event is whole"
        self._events.append(token_id)
        self._grow(_TOKEN_BYTES)

    def fail(self, error: EngineError) -> None:
        """End the stream with an error, which the reader gets after what already arrived."""
        self.has_ended = True
        self._error = error
        self._wake()

    def pause(self) -> None:
        """End the request in the engine; the reader gets Paused after what already arrived."""
        self._abort()
        self.fail(Paused(f"{self.num_bytes >> 10} KiB of the answer waited for a slow reader"))

    def cut(self) -> None:
        """Drop what waits and end the request: its reader is too slow."""
        num_bytes = self.num_bytes
        self.close()
        self._abort()
        self._log_cut(num_bytes)
        self.fail(
            SlowReader(f"{num_bytes >> 10} KiB of the answer were not read; the request was ended")
        )

    def close(self) -> None:
        self._unread.num_bytes -= self.num_bytes
        self._unread.leave(self)
        self._events, self.num_bytes = [], 0

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
        taken: list[TokenEvent] = []
        size = num_bytes = 0
        for waiting in self._events:
            event = self._whole(waiting)
            size += _size_of(event)
            if taken and size > MOST_AT_ONCE:
                break
            taken.append(event)
            num_bytes += _bytes_of(waiting)
        del self._events[: len(taken)]
        self.num_bytes -= num_bytes
        self._unread.num_bytes -= num_bytes
        return taken

    def _whole(self, event: Waiting) -> TokenEvent:
        if isinstance(event, TokenEvent):
            return event
        if isinstance(event, bytes):
            return _decode(event)
        assert self._last is not None
        return tokens_alone((event,), self._last)

    def _grow(self, num_bytes: int) -> None:
        self.num_bytes += num_bytes
        self._unread.num_bytes += num_bytes
        self._wake()
        self._unread.check(self)

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


def _size_of(event: TokenEvent) -> int:
    if event.logprobs is None:
        return len(event.token_ids)
    return sum(1 + len(logprob.top) for logprob in event.logprobs)


def _bytes_of(event: Waiting) -> int:
    if isinstance(event, int):
        return _TOKEN_BYTES
    if isinstance(event, bytes):
        return _TOKEN_BYTES + len(event)
    num_bytes = _EVENT_BYTES + _TOKEN_BYTES * len(event.token_ids)
    for logprob in event.logprobs or ():
        num_bytes += _LOGPROB_BYTES + _RIVAL_BYTES * len(logprob.top)
    return num_bytes


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
        events[0].extras,
        last.num_restarts,
    )
