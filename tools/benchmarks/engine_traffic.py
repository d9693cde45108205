"""Traffic for an engine's core without HTTP: requests come by the clock while it steps."""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import pairwise
from typing import Any

from engines.base import EngineRequest, SamplingParams, TokenEvent
from engines.native.loop.core import EngineCore
from engines.native.loop.sequence import Sequence

_LONGEST_PAUSE_S = 0.05

Then = Callable[["Traffic", float], None]


@dataclass
class Asked:
    """One request and when its tokens came, in seconds since the start."""

    at_s: float
    num_prompt: int
    token_s: list[float] = field(default_factory=list)
    num_cached: int = 0


class Traffic:
    """Requests of several groups, and what became of them."""

    def __init__(self, seed: int = 0, vocab_size: int = 199_000) -> None:
        self.chance = random.Random(seed)
        self.groups: dict[str, list[Asked]] = {}
        self.seconds = 0.0
        self.window: tuple[float, float] | None = None  # in which gaps between tokens count
        self.is_done = False  # set by a load that has seen enough
        self._vocab_size = vocab_size
        self._numbers = itertools.count()
        self._due: list[tuple[float, int, Callable[[EngineCore], None]]] = []
        self._running: dict[Sequence, tuple[Asked, Then | None]] = {}

    def ids(self, num: int) -> list[int]:
        return self.chance.choices(range(min(1000, self._vocab_size // 2), self._vocab_size), k=num)

    def ask(
        self, at_s: float, prompt: list[int], answer: int, group: str, then: Then | None = None
    ) -> None:
        """Have a request come; `then` is called with the time when its answer has ended."""
        number = next(self._numbers)

        def arrive(core: EngineCore) -> None:
            params = SamplingParams(max_tokens=answer, temperature=1.0, seed=number)
            asked = Asked(at_s, len(prompt))
            self.groups.setdefault(group, []).append(asked)
            request = EngineRequest(str(number), tuple(prompt), params)
            self._running[core.scheduler.add(request)] = asked, then

        heappush(self._due, (at_s, number, arrive))

    def run(
        self,
        core: EngineCore,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Step until all is answered, or a load has seen enough; the core is idle then."""
        began_s = clock()
        while not self.is_done and (self._due or core.has_work):
            now_s = clock() - began_s
            while self._due and self._due[0][0] <= now_s:
                heappop(self._due)[2](core)
            if core.has_work:
                for sequence, event in core.step():
                    assert isinstance(event, TokenEvent), event
                    self._note(sequence, event, clock() - began_s)
            else:
                sleep(min(max(self._due[0][0] - now_s, 0.0), _LONGEST_PAUSE_S))
        self.seconds = clock() - began_s
        for sequence in self._running:
            core.scheduler.remove(sequence)
        core.abandon()

    def _note(self, sequence: Sequence, event: TokenEvent, now_s: float) -> None:
        asked, then = self._running[sequence]
        asked.token_s += [now_s] * len(event.token_ids)
        asked.num_cached = event.num_cached_tokens
        if event.finish_reason is not None:
            del self._running[sequence]
            if then is not None:
                then(self, now_s)

    def figures(self) -> dict[str, Any]:
        groups = {name: self._of(asked) for name, asked in self.groups.items()}
        return {"seconds": round(self.seconds, 2), **groups}

    def _of(self, asked: list[Asked]) -> dict[str, Any]:
        begun = [each for each in asked if each.token_s]
        spans = [(each.token_s[-1] - each.token_s[0], len(each.token_s) - 1) for each in begun]
        num_prompt = sum(each.num_prompt for each in begun)
        return {
            "requests": len(asked),
            "ttft_ms": _spread([each.token_s[0] - each.at_s for each in begun]),
            "ms_per_token": _spread([span / num for span, num in spans if num]),
            "gap_ms": _spread([gap for each in begun for gap in self._gaps(each)]),
            "cached_share": round(sum(each.num_cached for each in begun) / max(num_prompt, 1), 3),
        }

    def _gaps(self, asked: Asked) -> Iterable[float]:
        first_s, last_s = self.window or (-math.inf, math.inf)
        for before_s, after_s in pairwise(asked.token_s):
            if before_s < last_s and after_s > first_s:
                yield after_s - before_s


def _spread(seconds: list[float]) -> dict[str, float]:
    if not seconds:
        return {}
    ordered, last = sorted(seconds), len(seconds) - 1
    shares = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    return {n: round(1e3 * ordered[min(int(s * len(ordered)), last)], 2) for n, s in shares.items()}


def poisson(rate: float, seconds: float = 12.0) -> Traffic:
    """Arrivals at random: prompts of 400 tokens and answers of 200 at the median, lognormal."""
    traffic = Traffic()
    chance, due_s = random.Random(f"0 {rate}"), 0.0
    while (due_s := due_s + chance.expovariate(rate)) < seconds:
        num_prompt = min(8192, max(16, int(chance.lognormvariate(math.log(400), 0.9))))
        num_answer = min(1024, max(8, int(chance.lognormvariate(math.log(200), 0.7))))
        traffic.ask(due_s, traffic.ids(num_prompt), num_answer, "all")
    return traffic


def agents(num: int, context: int = 20_000, turns: int = 5, new: int = 1500) -> Traffic:
    """Coding agents: a context each, turns that add `new` tokens and ask for 150, 0.5 s apart."""
    traffic = Traffic()

    def after(num_left: int, tokens: list[int]) -> Then:
        def then(traffic: Traffic, now_s: float) -> None:
            if num_left:
                longer = tokens + traffic.ids(new)
                traffic.ask(now_s + 0.5, longer, 150, "later turns", after(num_left - 1, longer))

        return then

    for _ in range(num):
        tokens = traffic.ids(context + new)
        at_s = 3 * traffic.chance.random()
        traffic.ask(at_s, tokens, 150, "first turns", after(turns - 1, tokens))
    return traffic


def beside(prompt: int, streams: int = 32) -> Traffic:
    """Streams, and a long prompt beside them; gaps count while it is read."""
    traffic = Traffic()

    def then(traffic: Traffic, now_s: float) -> None:
        traffic.window, traffic.is_done = (1.0, now_s), True

    for _ in range(streams):
        traffic.ask(0.0, traffic.ids(128), 16_000, "streams")
    traffic.ask(1.0, traffic.ids(prompt), 1, "prompt", then)
    return traffic


def burst(num: int, prompt: int = 128, answer: int = 384) -> Traffic:
    """All at once."""
    traffic = Traffic()
    for _ in range(num):
        traffic.ask(0.0, traffic.ids(prompt), answer, "all")
    return traffic
