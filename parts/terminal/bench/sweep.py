"""N concurrent streams, each asking again when its answer has ended; then the next number."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import Any

import httpx2

from parts.terminal.bench.stream import Timed, measure
from parts.terminal.client import CONNECT_S, SILENCE_S, ChatError

# Each is one token to most vocabularies.
_WORDS = ("time", "year", "people", "way", "day", "man", "thing", "life", "child", "world", "state")


@dataclass(frozen=True, slots=True)
class BenchLoad:
    """What is asked for, the same at every number of streams."""

    model: str
    prompt_words: int = 128
    max_tokens: int = 128
    rounds: int = 3  # requests of each stream, one after the other
    ignores_end: bool = True  # answers are exactly max_tokens long, where the server can do that

    def bodies(self, seed: int) -> Iterator[dict[str, Any]]:
        """Yield requests without end, no two alike: no prefix cache shortens the next."""
        words = random.Random(seed)
        end = {"ignore_eos": True} if self.ignores_end else {}
        while True:
            text = " ".join(words.choice(_WORDS) for _ in range(self.prompt_words))
            messages = [{"role": "user", "content": text}]
            yield {
                "model": self.model,
                "messages": messages,
                "max_tokens": self.max_tokens,
                **end,
            }


@dataclass(frozen=True, slots=True)
class Spread:
    """A distribution by two of its percentiles, in seconds."""

    p50: float
    p99: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """Return the percentiles of `values` (seconds) by nearest rank; None for no values."""
        if not values:
            return None
        ranked = sorted(values)
        return cls(
            *(ranked[min(int(len(ranked) * share), len(ranked) - 1)] for share in (0.5, 0.99))
        )


@dataclass(frozen=True, slots=True)
class Point:
    """What was seen at one number of streams; the figures are of the answers that came whole."""

    streams: int
    requests: int
    wall_s: float
    prompt_tokens: float | None
    output_tokens: int
    tokens_per_s: float  # of all streams together
    ttft: Spread | None
    inter_token: Spread | None  # p50 of the answers' means; p99 of the gaps between events
    e2e: Spread | None
    tokens_per_event: float | None
    client_cpu: float  # share of a core that this program took
    errors: dict[str, int] = field(default_factory=dict)  # how often, by message
    fields: str = "plain"  # which case of bench/fields.py the requests had

    @property
    def failed(self) -> int:
        return sum(self.errors.values())

    def as_json(self) -> dict[str, Any]:
        """Return the figures under the names of their fields, times in seconds."""
        return {**asdict(self), "failed": self.failed}


class Bench:
    """Puts one server under load, and measures how it streams."""

    def __init__(
        self,
        url: str,
        key: str | None,
        load: BenchLoad,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        """`transport` replaces the network."""
        self.load = load
        self._url = url
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._transport = transport

    async def warm_up(self) -> None:
        """Ask once, and learn whether the server knows `ignore_eos`; raises ChatError."""
        async with self._open(1) as http:
            try:
                await measure(http, next(self.load.bodies(0)))
            except ChatError as error:
                if "ignore_eos" not in str(error):
                    raise
                self.load = replace(self.load, ignores_end=False)
                await measure(http, next(self.load.bodies(0)))

    async def run(self, streams: int, asked: Mapping[str, Any] | None = None) -> Point:
        """Measure with this number of streams; failures are counted, and nothing is raised.

        `asked`: what each request has beside the load's.
        """
        done: list[Timed] = []
        errors: Counter[str] = Counter()
        async with self._open(streams) as http:
            began, cpu_began = time.perf_counter(), time.process_time()
            await asyncio.gather(
                *(
                    self._stream(http, 1000 * streams + n, asked or {}, done, errors)
                    for n in range(streams)
                )
            )
            wall_s = time.perf_counter() - began
            cpu_s = time.process_time() - cpu_began
        return point_of(streams, streams * self.load.rounds, wall_s, cpu_s, done, errors)

    async def _stream(
        self,
        http: httpx2.AsyncClient,
        seed: int,
        asked: Mapping[str, Any],
        done: list[Timed],
        errors: Counter[str],
    ) -> None:
        bodies = self.load.bodies(seed)
        for _ in range(self.load.rounds):
            try:
                done.append(await measure(http, {**next(bodies), **asked}))
            except ChatError as error:
                errors[str(error)] += 1

    def _open(self, streams: int) -> httpx2.AsyncClient:
        limits = httpx2.Limits(max_connections=streams, max_keepalive_connections=streams)
        timeout = httpx2.Timeout(SILENCE_S, connect=CONNECT_S, pool=None)
        return httpx2.AsyncClient(
            base_url=self._url,
            headers=self._headers,
            limits=limits,
            timeout=timeout,
            transport=self._transport,
        )


def point_of(
    streams: int,
    requests: int,
    wall_s: float,
    cpu_s: float,
    done: Sequence[Timed],
    errors: Counter[str],
) -> Point:
    """Work out the figures of one number of streams, of which `done` came whole.

    `wall_s` and `cpu_s`: seconds of the clock, and of this program's CPU.
    """
    means = Spread.of([mean for timed in done if (mean := timed.s_per_token) is not None])
    gaps = Spread.of([gap for timed in done for gap in timed.gaps_s])
    prompts = [timed.prompt_tokens for timed in done if timed.prompt_tokens is not None]
    output_tokens = sum(timed.output_tokens for timed in done)
    num_events = sum(len(timed.event_times) for timed in done)
    return Point(
        streams=streams,
        requests=requests,
        wall_s=wall_s,
        prompt_tokens=median(prompts) if prompts else None,
        output_tokens=output_tokens,
        tokens_per_s=output_tokens / wall_s,
        ttft=Spread.of([timed.ttft_s for timed in done]),
        inter_token=Spread(means.p50, gaps.p99) if means and gaps else None,
        e2e=Spread.of([timed.e2e_s for timed in done]),
        tokens_per_event=output_tokens / num_events if num_events else None,
        client_cpu=cpu_s / wall_s,
        errors=dict(errors),
    )
