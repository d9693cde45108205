"""From what the engine emitted and what the client read to the delay of every token."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from service.harmony import vocabulary
from tools.benchmarks.reader import Reading
from tools.benchmarks.scripted import answer_ids

Times = dict[str, list[int]]  # of each token in ns, by request


@dataclass(frozen=True, slots=True)
class Span:
    """The time in which every stream ran, in ns; all of the time when they never did together."""

    start: int
    end: int

    @classmethod
    def of(cls, emitted: Times) -> Span:
        starts = [times[0] for times in emitted.values()]
        ends = [times[-1] for times in emitted.values()]
        is_common = max(starts) < min(ends)
        return cls(max(starts), min(ends)) if is_common else cls(min(starts), max(ends))

    def delays_ms(self, read_at: int, emitted_at: Sequence[int]) -> Iterator[float]:
        """Of those tokens of one piece that were emitted within the span."""
        return ((read_at - t) / 1e6 for t in emitted_at if self.start <= t <= self.end)


@dataclass(frozen=True, slots=True)
class Visible:
    """The tokens of the answer that show, and how long the text is after each."""

    indices: list[int]
    ends: list[int]

    @classmethod
    def of(cls, num_repeats: int) -> Visible:
        is_text, indices, ids = False, [], answer_ids(num_repeats)
        for index, token_id in enumerate(ids):
            if not vocabulary.is_ordinary(token_id):
                is_text = token_id == vocabulary.MESSAGE
            elif is_text:
                indices.append(index)
        lengths = (len(vocabulary.decode_bytes(ids[index])) for index in indices)
        return cls(indices, list(accumulate(lengths)))


def chat_delays_ms(readings: Sequence[Reading], emitted: Times, visible: Visible) -> list[float]:
    """Of every visible token, matched by the length of the text it is in."""
    span, delays = Span.of(emitted), list[float]()
    for reading in readings:
        times = emitted[reading.request_id]
        num_chars = first = 0
        for read_at, event in reading.events():
            num_chars += len(_text_of(event))
            last = bisect_left(visible.ends, num_chars + 1)
            delays += span.delays_ms(read_at, [times[i] for i in visible.indices[first:last]])
            first = last
        if first != len(visible.indices):
            raise RuntimeError(f"a stream broke off: {reading.data[-200:]!r}")
    return delays


def bare_delays_ms(readings: Sequence[Reading], emitted: Times) -> list[float]:
    """Of every event of a server that only writes."""
    span, delays = Span.of(emitted), list[float]()
    for reading in readings:
        times, first = emitted[reading.request_id], 0
        ends = accumulate(piece.count(b"\n\n") for piece in reading.pieces)
        for read_at, last in zip(reading.times_ns, ends, strict=True):
            delays += span.delays_ms(read_at, times[first:last])
            first = last
    return delays


def seconds(readings: Sequence[Reading], emitted: Times) -> float:
    """From the first token emitted to the last byte read."""
    first = min(times[0] for times in emitted.values())
    return (max(reading.times_ns[-1] for reading in readings) - first) / 1e9


def _text_of(event: dict[str, Any]) -> str:
    if not event["choices"]:
        return ""
    delta = event["choices"][0]["delta"]
    calls = "".join(call["function"]["arguments"] for call in delta.get("tool_calls", ()))
    return f"{delta.get('reasoning', '')}{calls}"
