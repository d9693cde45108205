"""One streamed answer, and when its pieces came."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter
from typing import Any

import httpx2
import msgspec
from httpx2 import EventSource

from parts.terminal.client import Answer, ChatError, check


@dataclass(frozen=True, slots=True)
class Timed:
    """An answer that came whole; seconds of `perf_counter`."""

    asked_at: float
    event_times: tuple[float, ...]  # of the events with text; never empty
    ended_at: float
    prompt_tokens: int | None  # None: the server does not say
    output_tokens: int  # as the server counts them, else one for each event

    @property
    def ttft_s(self) -> float:
        return self.event_times[0] - self.asked_at

    @property
    def e2e_s(self) -> float:
        """The seconds from the request to the end of the answer."""
        return self.ended_at - self.asked_at

    @property
    def gaps_s(self) -> list[float]:
        """The seconds between events, of which one may bring several tokens."""
        return [after - before for before, after in pairwise(self.event_times)]

    @property
    def s_per_token(self) -> float | None:
        """The mean seconds for a token after the first; None for an answer of one."""
        if self.output_tokens < 2:
            return None
        return (self.event_times[-1] - self.event_times[0]) / (self.output_tokens - 1)


async def measure(http: httpx2.AsyncClient, body: Mapping[str, Any]) -> Timed:
    """Send a request and read the answer; raises ChatError with the server's message or the
    failure."""
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
    answer, event_times, is_whole = Answer(), [], False
    asked_at = perf_counter()
    try:
        async with http.stream("POST", "/v1/chat/completions", json=asked) as response:
            if response.is_error:
                await response.aread()
                check(response)
            async for event in EventSource(response, max_event_size=None):
                came_at = perf_counter()
                if event.data == "[DONE]":
                    is_whole = True
                    break
                if list(answer.take(msgspec.json.decode(event.data))):
                    event_times.append(came_at)
    except httpx2.HTTPError as error:
        raise ChatError(f"the connection failed: {error or type(error).__name__}") from None
    if not is_whole:
        raise ChatError("the stream ended before its end marker")
    if not event_times:
        raise ChatError("the answer has no text")
    usage = answer.usage or {}
    return Timed(
        asked_at,
        tuple(event_times),
        perf_counter(),
        usage.get("prompt_tokens"),
        usage.get("completion_tokens") or len(event_times),
    )
