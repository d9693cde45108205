"""One GPU of a fleet: an engine whose steps take what was measured, in simulated time."""

from __future__ import annotations

import json
import math
from collections import OrderedDict, deque
from collections.abc import Iterable
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from typing import Final

from engines.native.step_costs import StepCosts, StepWork
from tools.fleet.trace import BLOCK, Request

_MEASURED: Final = Path("tools/benchmarks/results/gpu-traffic-20b-h200.json")
CACHE_BLOCKS: Final = 74_176 * 64 // BLOCK  # results/gpu-step-budget-20b-h200.json
CHUNK: Final = 2048  # tokens of prompts in a step
MAX_ROWS: Final = 512


def measured_costs() -> StepCosts:
    """What steps of gpt-oss-20b took on one H200, as its engine's calibration found."""
    costs = json.loads(_MEASURED.read_text(encoding="utf-8"))["costs"]
    return StepCosts.from_dict({**costs, "round_tokens": 1})  # it was fitted without rounds


class Cache:
    """The prefix cache: blocks by their last use."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._blocks: OrderedDict[int, None] = OrderedDict()
        self._stored: list[int] = []
        self._dropped: list[int] = []

    def num_cached(self, blocks: Iterable[int]) -> int:
        """How many leading blocks it has."""
        number = 0
        for block in blocks:
            if block not in self._blocks:
                break
            number += 1
        return number

    def use(self, blocks: tuple[int, ...]) -> None:
        """Have these blocks, the first ones longest: others are of no use without them."""
        for block in reversed(blocks):
            if block not in self._blocks:
                self._stored.append(block)
                self._blocks[block] = None
            else:
                self._blocks.move_to_end(block)
        while len(self._blocks) > self._size:
            self._dropped.append(self._blocks.popitem(last=False)[0])

    def news(self) -> tuple[list[int], list[int]]:
        """What it has stored and dropped since the last call."""
        found = self._stored, self._dropped
        self._stored, self._dropped = [], []
        return found


class Gpu:
    """Computes steps of one token for each answer beside a chunk of prompts.

    Steps without prompts that follow one another are one event: they take as long as their sum.
    """

    def __init__(self, costs: StepCosts, cache_blocks: int = CACHE_BLOCKS) -> None:
        self.cache = Cache(cache_blocks)
        self.num_requests = 0
        self.done_s = math.inf  # when the event under way ends
        self._cache_tokens = cache_blocks * BLOCK
        self._costs = costs
        self._waiting: deque[Request] = deque()
        self._read = 0  # tokens of the first waiting prompt that are there
        self._rows: list[tuple[int, int, Request]] = []  # heap: the step that ends an answer
        self._numbers = count()
        self._step = 0
        self._context = 0
        self._most_held = 0  # tokens of running requests
        self._begun_s = 0.0
        self._num_steps = 0  # of the event under way
        self._firsts: list[Request] = []  # whose prompt it completes

    @property
    def held_share(self) -> float:
        """How much of its memory running requests held at most."""
        return self._most_held / self._cache_tokens

    def add(self, request: Request, now_s: float) -> None:
        """Take a request; steps under way are not stopped, and others do not begin before it."""
        self.num_requests += 1
        self._waiting.append(request)
        if self.done_s == math.inf:
            self._begin(now_s)
        elif self._num_steps > 1:
            self._cut(now_s)

    def finish(self) -> list[Request]:
        """End the event at `done_s` and begin the next; return the answers that are whole."""
        now_s, self.done_s = self.done_s, math.inf
        self._step += self._num_steps
        self._context += self._num_steps * len(self._rows)
        ended = []
        while self._rows and self._rows[0][0] <= self._step:
            ended.append(heappop(self._rows)[2])
            self._context -= ended[-1].prompt + ended[-1].answer
        for request in self._firsts:
            request.first_s = now_s
            self.cache.use(request.blocks)
            if request.answer > 1:
                row = (self._step + request.answer - 1, next(self._numbers), request)
                heappush(self._rows, row)
                self._context += request.prompt + 1
            else:
                ended.append(request)
        for request in ended:
            request.last_s = now_s
            self.cache.use(request.blocks)
        self.num_requests -= len(ended)
        self._most_held = max(self._most_held, self._context)
        self._begin(now_s)
        return ended

    def _begin(self, now_s: float) -> None:
        self._begun_s, self._firsts = now_s, []
        if self._waiting and len(self._rows) < MAX_ROWS:
            self._num_steps = 1
            self.done_s = now_s + self._costs.seconds(self._rows_work() + self._chunk())
        elif self._rows:
            self._num_steps = self._rows[0][0] - self._step
            self.done_s = now_s + self._seconds(self._num_steps)

    def _rows_work(self) -> StepWork:
        return StepWork(rows=len(self._rows), context=self._context)

    def _chunk(self) -> StepWork:
        """Take tokens of the first waiting prompts."""
        work, room = StepWork(), CHUNK
        while self._waiting and room > 0 and len(self._rows) + len(self._firsts) < MAX_ROWS:
            request = self._waiting[0]
            if self._read == 0:
                found = self.cache.num_cached(request.blocks) * BLOCK
                request.num_cached = self._read = min(found, request.prompt - 1)
            num = min(room, request.prompt - self._read)
            work += self._costs.chunk(self._read, num)
            self._read += num
            room -= num
            if self._read == request.prompt:
                self._firsts.append(self._waiting.popleft())
                self._read = 0
        return work

    def _seconds(self, steps: int) -> float:
        """What so many steps of the rows take: in each the context grows by a token a row."""
        first_s, growth_s = self._growth()
        return steps * first_s + growth_s * steps * (steps - 1) / 2

    def _growth(self) -> tuple[float, float]:
        work = self._rows_work()
        first_s = self._costs.seconds(work)
        return first_s, self._costs.seconds(work + StepWork(context=len(self._rows))) - first_s

    def _cut(self, now_s: float) -> None:
        """End the event with the step that computes now."""
        first_s, growth_s = self._growth()
        passed_s, half = now_s - self._begun_s, growth_s / 2
        linear = first_s - half
        steps = (math.sqrt(linear**2 + 4 * half * passed_s) - linear) / (2 * half)
        self._num_steps = min(self._num_steps, max(1, math.ceil(steps)))
        self.done_s = self._begun_s + self._seconds(self._num_steps)
