"""The loads: who asks for what, and when.

Arrivals and lengths follow from the seed. Each run draws other prompts, so that no server has
them cached unless the load means it to. Bodies are made before the clock starts.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from parts.terminal.bench.bodies import Bodies
from parts.terminal.bench.exchange import Connector, Exchange, all_ended


@dataclass(slots=True)
class Traffic:
    """What a load sent, by group, and the time in which it did."""

    began_at: float = 0.0
    ended_at: float = 0.0
    groups: dict[str, list[Exchange]] = field(default_factory=dict)
    # Where gaps between tokens count in this time only: while a long prompt is read, say.
    windows: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    # Seconds of a group that had the server to itself, where that is not all of the time.
    busy_s: dict[str, float] = field(default_factory=dict)
    # The group that another's times are a share of, by the other's name.
    references: dict[str, str] = field(default_factory=dict)

    def add(self, group: str, exchange: Exchange) -> Exchange:
        self.groups.setdefault(group, []).append(exchange)
        return exchange

    @asynccontextmanager
    async def timed(self) -> Any:
        """Time the block."""
        self.began_at = time.perf_counter()
        yield
        self.ended_at = time.perf_counter()


class UserLoad(Protocol):
    """A load, to be run against one server at a time."""

    async def run(self, connector: Connector, seed: int) -> Traffic:
        """Send it; returns when all of it has ended."""


@dataclass(frozen=True, slots=True)
class Poisson:
    """Requests arrive by themselves; lengths are lognormal with these medians."""

    rate: float = 8.0  # requests a second
    seconds: float = 20.0  # of arrivals
    prompt: int = 400
    answer: int = 200
    most_prompt: int = 8192
    most_answer: int = 1024

    async def run(self, connector: Connector, seed: int) -> Traffic:
        bodies, traffic = Bodies(connector), Traffic()
        arrivals = list(self.arrivals(bodies, seed))
        asking = []
        async with traffic.timed():
            for due, body in arrivals:
                await asyncio.sleep(traffic.began_at + due - time.perf_counter())
                asking.append(traffic.add("all", bodies.start(body)))
            await all_ended(asking)
        return traffic

    def arrivals(self, bodies: Bodies, seed: int) -> Iterator[tuple[float, bytes]]:
        """When each request is due, and its body."""
        chance = random.Random(f"{seed} {self.rate}")
        due = chance.expovariate(self.rate)
        while due < self.seconds:
            num_prompt = _lognormal(chance, self.prompt, 0.9, 16, self.most_prompt)
            num_answer = _lognormal(chance, self.answer, 0.7, 8, self.most_answer)
            yield due, bodies.ask(bodies.text(num_prompt), num_answer)
            due += chance.expovariate(self.rate)


def _lognormal(chance: random.Random, median: int, sigma: float, low: int, high: int) -> int:
    return int(min(high, max(low, chance.lognormvariate(math.log(median), sigma))))


@dataclass(frozen=True, slots=True)
class Agents:
    """Coding agents: each has a long context of its own that grows by every turn."""

    agents: int = 24
    context: int = 20_000  # tokens before the first turn
    turns: int = 5
    new: int = 1500  # tokens that a turn adds: the last answer, what tools said
    answer: int = 150
    pause: float = 0.5  # seconds between turns
    spread: float = 3.0  # seconds over which the agents begin

    async def run(self, connector: Connector, seed: int) -> Traffic:
        bodies, traffic = Bodies(connector), Traffic()
        turns_of = [self.turns_of(bodies) for _ in range(self.agents)]

        async def agent(number: int) -> None:
            await asyncio.sleep(random.Random(f"{seed} {number}").random() * self.spread)
            for turn, body in enumerate(turns_of[number]):
                group = "later turns" if turn else "first turns"
                await traffic.add(group, bodies.start(body)).ended
                await asyncio.sleep(self.pause if turn + 1 < self.turns else 0)

        async with traffic.timed():
            await asyncio.gather(*map(agent, range(self.agents)))
        return traffic

    def turns_of(self, bodies: Bodies) -> list[bytes]:
        """The requests of one agent; each begins with the one before it."""
        context, turns = bodies.text(self.context), []
        for _ in range(self.turns):
            context = bodies.joined(context, bodies.text(self.new))
            turns.append(bodies.ask(context, self.answer))
        return turns


@dataclass(frozen=True, slots=True)
class Streams:
    """That many at once, each asking again when its answer has ended."""

    streams: int = 8
    rounds: int = 3  # requests of each; 1: a burst
    prompt: int = 128
    answer: int = 128

    async def run(self, connector: Connector, seed: int) -> Traffic:
        bodies, traffic = Bodies(connector), Traffic()
        streams = range(self.streams)
        asked = [bodies.several(self.rounds, self.prompt, self.answer) for _ in streams]

        async def stream(of: list[bytes]) -> None:
            for body in of:
                await traffic.add("all", bodies.start(body)).ended

        async with traffic.timed():
            await asyncio.gather(*map(stream, asked))
        return traffic


@dataclass(frozen=True, slots=True)
class BulkLoad:
    """Long prompts sent at once, and short chats with the same key that come after them."""

    prompts: int = 400
    prompt: int = 4000
    answer: int = 32
    flex: int = 0  # 1: the long ones ask for the service tier `flex`
    chats: int = 24
    rate: float = 2.0  # chats a second
    delay: float = 1.0  # seconds from the long ones to the first chat
    chat_prompt: int = 100
    chat_answer: int = 100

    async def run(self, connector: Connector, seed: int) -> Traffic:
        bodies, traffic = Bodies(connector), Traffic()
        tier = {"service_tier": "flex"} if self.flex else {}
        long = bodies.several(self.prompts, self.prompt, self.answer, **tier)
        short = bodies.several(self.chats, self.chat_prompt, self.chat_answer)
        async with traffic.timed():
            asking = [traffic.add("bulk", bodies.start(body)) for body in long]
            for number, body in enumerate(short):
                due = traffic.began_at + self.delay + number / self.rate
                await asyncio.sleep(due - time.perf_counter())
                asking.append(traffic.add("chat", bodies.start(body)))
            await all_ended(asking)
        return traffic


@dataclass(frozen=True, slots=True)
class Rag:
    """Questions over documents, all at once: the same instructions, then documents of their own."""

    questions: int = 96
    shared: int = 3000  # tokens of the instructions
    own: int = 6000
    answer: int = 200

    async def run(self, connector: Connector, seed: int) -> Traffic:
        bodies, traffic = Bodies(connector), Traffic()
        shared = bodies.text(self.shared)
        asked = [
            bodies.ask(bodies.joined(shared, bodies.text(self.own)), self.answer)
            for _ in range(self.questions)
        ]
        async with traffic.timed():
            await all_ended([traffic.add("all", bodies.start(body)) for body in asked])
        return traffic


@dataclass(frozen=True, slots=True)
class Long:
    """One long prompt on an idle server, and the same once more."""

    prompt: int = 32_000
    answer: int = 64

    async def run(self, connector: Connector, seed: int) -> Traffic:
        bodies, traffic = Bodies(connector), Traffic()
        body = bodies.ask(bodies.text(self.prompt), self.answer)
        async with traffic.timed():
            for group in ("new", "again"):
                await traffic.add(group, bodies.start(body)).ended
        return traffic


@dataclass(frozen=True, slots=True)
class Beside:
    """Streams that generate while a long prompt is read; gaps count in that time only."""

    prompt: int = 32_000
    streams: int = 32
    times: int = 2  # a prompt after the other
    settle: float = 1.0  # seconds that the streams run before each
    answer: int = 16_000  # of a stream; it is cancelled when the last prompt is read

    async def run(self, connector: Connector, seed: int) -> Traffic:
        bodies, traffic = Bodies(connector), Traffic()
        streams = bodies.several(self.streams, 128, self.answer)
        prompts = bodies.several(self.times, self.prompt, 1)
        windows = traffic.windows["streams"] = []
        async with traffic.timed():
            running = [traffic.add("streams", bodies.start(body)) for body in streams]
            for body in prompts:
                await asyncio.sleep(self.settle)
                exchange = traffic.add("prompt", bodies.start(body))
                await exchange.ended
                windows.append((exchange.asked_at, exchange.ended_at))
            for exchange in running:
                exchange.cancel()
            await all_ended(running)
        return traffic


@dataclass(frozen=True, slots=True)
class Guided:
    """Plain streams alone, then as many again beside streams that follow a JSON schema."""

    streams: int = 16
    guided: int = 0  # streams that follow it; 0: as many as plain ones
    answer: int = 256

    async def run(self, connector: Connector, seed: int) -> Traffic:
        bodies, traffic = Bodies(connector), Traffic()
        plain = bodies.several(2 * self.streams, 128, self.answer)
        num_guided = self.guided or self.streams
        guided = [bodies.guided(bodies.text(128), self.answer) for _ in range(num_guided)]
        alone, beside = plain[: self.streams], plain[self.streams :]
        async with traffic.timed():
            for asked in ({"plain alone": alone}, {"plain": beside, "guided": guided}):
                exchanges = [
                    traffic.add(group, bodies.start(body))
                    for group, of_group in asked.items()
                    for body in of_group
                ]
                await all_ended(exchanges)
        return traffic
