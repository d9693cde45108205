"""The loads: who asks for what, and when.

Arrivals and lengths follow from the seed. Token ids are drawn anew each time, so that no server has
them cached unless the load means it to. Answers have a fixed length (`ignore_eos`). All bodies are
made before the clock starts.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from tools.benchmarks.serving.client import Connector, Exchange, all_ended

COMPLETIONS: Final = "/v1/completions"
_IDS: Final = [str(number) for number in range(1000, 190_000)]  # plain words of o200k
_SCHEMA: Final = {
    "type": "object",
    "properties": {
        "items": {
            "type": "array",
            "minItems": 200,
            "items": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "count": {"type": "integer"}},
                "required": ["name", "count"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["items"],
    "additionalProperties": False,
}


@dataclass(slots=True)
class Traffic:
    """What a load sent, by group, and the time in which it did."""

    began_at: float = 0.0
    ended_at: float = 0.0
    groups: dict[str, list[Exchange]] = field(default_factory=dict)
    # Where gaps between tokens count in this time only: while a long prompt is read, say.
    windows: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def add(self, group: str, exchange: Exchange) -> Exchange:
        self.groups.setdefault(group, []).append(exchange)
        return exchange

    @asynccontextmanager
    async def timed(self) -> Any:
        """Time the block."""
        self.began_at = time.perf_counter()
        yield
        self.ended_at = time.perf_counter()


class Load(Protocol):
    """A load, to be run against one server at a time."""

    async def run(self, connector: Connector, seed: int) -> Traffic:
        """Send it; returns when all of it has ended."""
        ...


class Bodies:
    """Makes requests for one server."""

    def __init__(self, connector: Connector) -> None:
        self._server = connector.server
        self._random = random.Random()

    def ids(self, num: int) -> str:
        """Random token ids, as JSON has them between its brackets."""
        return ",".join(self._random.choices(_IDS, k=num))

    def completion(self, ids: str, num_tokens: int) -> bytes:
        """Continue these token ids by exactly so many tokens."""
        body = json.dumps({**self._common(num_tokens), "prompt": [0]})
        return body.replace('"prompt": [0]', f'"prompt": [{ids}]').encode()

    def guided(self, ids: str, num_tokens: int) -> bytes:
        """Continue these token ids by a document that its schema does not end before its length."""
        named = {"name": "list", "strict": True, "schema": _SCHEMA}
        body = json.loads(self.completion("0", num_tokens))
        body["response_format"] = {"type": "json_schema", "json_schema": named}
        body.pop("ignore_eos", None)  # a document ends where its schema lets it
        return json.dumps(body).replace('"prompt": [0]', f'"prompt": [{ids}]').encode()

    def _common(self, num_tokens: int) -> dict[str, Any]:
        return {
            "model": self._server.model,
            "max_tokens": num_tokens,
            "temperature": 1.0,
            "seed": self._random.getrandbits(30),
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._server.extra,
        }


@dataclass(frozen=True, slots=True)
class Poisson:
    """Requests arrive by themselves; lengths are lognormal with these medians."""

    rate: float  # requests a second
    seconds: float = 20.0  # of arrivals
    prompt: int = 400
    answer: int = 200
    most_prompt: int = 8192
    most_answer: int = 1024

    async def run(self, connector: Connector, seed: int) -> Traffic:
        traffic = Traffic()
        arrivals = list(self.arrivals(connector, seed))
        asking = []
        async with traffic.timed():
            for due, body in arrivals:
                await asyncio.sleep(traffic.began_at + due - time.perf_counter())
                asking.append(traffic.add("all", connector.start(COMPLETIONS, body)))
            await all_ended(asking)
        return traffic

    def arrivals(self, connector: Connector, seed: int) -> Iterator[tuple[float, bytes]]:
        """When each request is due, and its body."""
        chance = random.Random(f"{seed} {self.rate}")
        bodies = Bodies(connector)
        due = chance.expovariate(self.rate)
        while due < self.seconds:
            num_prompt = _lognormal(chance, self.prompt, 0.9, 16, self.most_prompt)
            num_answer = _lognormal(chance, self.answer, 0.7, 8, self.most_answer)
            yield due, bodies.completion(bodies.ids(num_prompt), num_answer)
            due += chance.expovariate(self.rate)


def _lognormal(chance: random.Random, median: int, sigma: float, low: int, high: int) -> int:
    return int(min(high, max(low, chance.lognormvariate(math.log(median), sigma))))


@dataclass(frozen=True, slots=True)
class Agents:
    """Coding agents: each has a long context of its own that grows by every turn."""

    agents: int
    context: int = 20_000  # tokens before the first turn
    turns: int = 5
    new: int = 1500  # tokens that a turn adds: the last answer, what tools said
    answer: int = 150
    pause: float = 0.5  # seconds between turns
    spread: float = 3.0  # seconds over which the agents begin

    async def run(self, connector: Connector, seed: int) -> Traffic:
        traffic = Traffic()
        bodies = [self._turns(connector) for _ in range(self.agents)]

        async def agent(number: int) -> None:
            await asyncio.sleep(random.Random(f"{seed} {number}").random() * self.spread)
            for turn, body in enumerate(bodies[number]):
                group = "later turns" if turn else "first turns"
                await traffic.add(group, connector.start(COMPLETIONS, body)).ended
                await asyncio.sleep(self.pause if turn + 1 < self.turns else 0)

        async with traffic.timed():
            await asyncio.gather(*map(agent, range(self.agents)))
        return traffic

    def _turns(self, connector: Connector) -> list[bytes]:
        bodies = Bodies(connector)
        context, turns = bodies.ids(self.context), []
        for _ in range(self.turns):
            context += "," + bodies.ids(self.new)
            turns.append(bodies.completion(context, self.answer))
        return turns


@dataclass(frozen=True, slots=True)
class Burst:
    """All at once."""

    requests: int
    prompt: int = 128
    answer: int = 384

    async def run(self, connector: Connector, seed: int) -> Traffic:
        bodies, traffic = Bodies(connector), Traffic()
        asked = [
            bodies.completion(bodies.ids(self.prompt), self.answer) for _ in range(self.requests)
        ]
        async with traffic.timed():
            exchanges = [traffic.add("all", connector.start(COMPLETIONS, body)) for body in asked]
            await all_ended(exchanges)
        return traffic


@dataclass(frozen=True, slots=True)
class Long:
    """One long prompt on an idle server, and the same once more."""

    prompt: int
    answer: int = 64

    async def run(self, connector: Connector, seed: int) -> Traffic:
        bodies, traffic = Bodies(connector), Traffic()
        body = bodies.completion(bodies.ids(self.prompt), self.answer)
        async with traffic.timed():
            for group in ("new", "again"):
                await traffic.add(group, connector.start(COMPLETIONS, body)).ended
        return traffic


@dataclass(frozen=True, slots=True)
class Beside:
    """Streams that generate while a long prompt is read; gaps count in that time only."""

    prompt: int
    streams: int = 32
    times: int = 2  # a prompt after the other
    settle: float = 1.0  # seconds that the streams run before each
    answer: int = 16_000  # of a stream; it is cancelled when the last prompt is read

    async def run(self, connector: Connector, seed: int) -> Traffic:
        bodies, traffic = Bodies(connector), Traffic()
        streams = [bodies.completion(bodies.ids(128), self.answer) for _ in range(self.streams)]
        prompts = [bodies.completion(bodies.ids(self.prompt), 1) for _ in range(self.times)]
        windows = traffic.windows["streams"] = []
        async with traffic.timed():
            running = [
                traffic.add("streams", connector.start(COMPLETIONS, body)) for body in streams
            ]
            for body in prompts:
                await asyncio.sleep(self.settle)
                exchange = traffic.add("prompt", connector.start(COMPLETIONS, body))
                await exchange.ended
                windows.append((exchange.asked_at, exchange.ended_at))
            for exchange in running:
                exchange.cancel()
            await all_ended(running)
        return traffic


@dataclass(frozen=True, slots=True)
class Guided:
    """Plain streams alone, then as many again beside streams that follow a JSON schema."""

    streams: int
    answer: int = 256

    async def run(self, connector: Connector, seed: int) -> Traffic:
        bodies, traffic = Bodies(connector), Traffic()
        plain = [bodies.completion(bodies.ids(128), self.answer) for _ in range(2 * self.streams)]
        guided = [bodies.guided(bodies.ids(128), self.answer) for _ in range(self.streams)]
        alone, beside = plain[: self.streams], plain[self.streams :]
        async with traffic.timed():
            for asked in ({"plain alone": alone}, {"plain": beside, "guided": guided}):
                exchanges = [
                    traffic.add(group, connector.start(COMPLETIONS, body))
                    for group, of_group in asked.items()
                    for body in of_group
                ]
                await all_ended(exchanges)
        return traffic


LOADS: Final[dict[str, Callable[..., Load]]] = {
    "poisson": Poisson,
    "agents": Agents,
    "burst": Burst,
    "long": Long,
    "beside": Beside,
    "guided": Guided,
}
