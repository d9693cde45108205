"""The step loop on a simulated clock: steps take what a cost model says, and compute nothing."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count, pairwise
from pathlib import Path
from typing import Any

from engines.base import EngineRequest, SamplingParams, TokenEvent
from engines.native.assemble import options_of_backend
from engines.native.backends.base import Batch, Capacity, HostCapacity, Sampled, TokenMasks
from engines.native.config import NativeConfig
from engines.native.loop.block_manager import BlockManager
from engines.native.loop.core import EngineCore
from engines.native.loop.limits import SchedulerLimits
from engines.native.loop.scheduler import Scheduler
from engines.native.loop.sequence import Sequence as EngineSequence
from engines.native.step_costs import StepCosts, StepWork

# Milliseconds by rows and by tokens of a chunk: gpt-oss-20b on one H200, by calibration.py.
H200: dict[str, Any] = {
    "decode": {1: 1.9, 8: 3.4, 32: 5.1, 64: 6.0, 128: 7.2, 256: 10.7, 512: 16.1},
    "prefill": {
        64: 6.1,
        128: 7.7,
        256: 8.8,
        512: 11.8,
        1024: 17.1,
        2048: 28.9,
        4096: 56,
        8192: 107,
    },
    "per_context": 1.4e-5,
    "per_pair": 3.4e-7,
    "round_tokens": 384,
    "beside": 0.48,
}
BLOCK_BYTES = 12 * 64 * 2 * 512 * 2  # of 64 tokens of gpt-oss-20b
COPY_S = BLOCK_BYTES / 50e9
VOCAB_SIZE = 201_088
TOKEN = 7  # that every step samples


def h200(factor: float = 1.0) -> StepCosts:
    """What steps take there, or so many times as much."""
    seconds = factor / 1000
    values = {
        **H200,
        "decode": {n: seconds * ms for n, ms in H200["decode"].items()},
        "prefill": {n: seconds * ms for n, ms in H200["prefill"].items()},
        "per_context": seconds * H200["per_context"],
        "per_pair": seconds * H200["per_pair"],
    }
    return StepCosts.from_dict(values)


@dataclass
class Clock:
    """Seconds that pass only when a step does, or when nothing is to do."""

    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


class SimulatedStep:
    """Done at a time of its clock."""

    def __init__(self, clock: Clock, done_s: float, num_sampled: int) -> None:
        self._clock, self._done_s, self._num_sampled = clock, done_s, num_sampled

    def mask(self, masks: Mapping[int, TokenMasks]) -> None: ...

    def collect(self) -> list[Sampled]:
        self._clock.now_s = max(self._clock.now_s, self._done_s)
        return [Sampled((TOKEN,))] * self._num_sampled

    def steady_tokens(self) -> list[int]:
        return []


class SimulatedBackend:
    """A device that is busy for as long as its costs say; implements backends.base.Backend.

    Copies between host and device follow one another beside the steps, at 50 GB/s.
    """

    def __init__(
        self, clock: Clock, costs: StepCosts, num_blocks: int, num_host_blocks: int = 0
    ) -> None:
        host = HostCapacity(num_host_blocks, BLOCK_BYTES, COPY_S) if num_host_blocks else None
        self.capacity = Capacity(num_blocks, 64, 131_072, host=host)
        self.access = None
        self.works: list[StepWork] = []
        self.busy_s = 0.0
        self._clock, self._costs, self._free_s = clock, costs, 0.0
        self._copied_s = self._loaded_s = 0.0  # when all copies are done, and those that load

    def close(self) -> None: ...

    def launch(self, batch: Batch) -> SimulatedStep:
        begun_s = max(self._free_s, self._clock(), self._loaded_s)
        if batch.moves:
            self._copied_s = max(self._copied_s, begun_s) + len(batch.moves) * COPY_S
        if not all(move.is_save for move in batch.moves):
            self._loaded_s = self._copied_s
        if batch.needs_moves:
            begun_s = max(begun_s, self._loaded_s)
        work = StepWork()
        for row in batch.rows:
            if row.is_last and row.end - row.start == 1:
                work += StepWork(rows=1, context=row.end)
            else:
                work += self._costs.chunk(row.start, row.end - row.start)
        self.works.append(work)
        self.busy_s += self._costs.seconds(work)
        self._free_s = begun_s + self._costs.seconds(work)
        return SimulatedStep(self._clock, self._free_s, sum(row.is_last for row in batch.rows))


@dataclass
class Record:
    """What became of one request; seconds of the clock."""

    prompt: int
    arrived_s: float
    token_s: list[float] = field(default_factory=list)
    num_cached: int = 0
    is_done: bool = False

    @property
    def ttft_s(self) -> float:
        return self.token_s[0] - self.arrived_s

    @property
    def gaps_s(self) -> list[float]:
        return [b - a for a, b in pairwise(self.token_s)]


class Simulation:
    """An engine of the native step loop whose requests come by the clock."""

    def __init__(
        self,
        *,
        max_token_gap_s: float | None,
        costs: StepCosts | None = None,
        believed: StepCosts | None = None,
        max_num_seqs: int = 512,
        num_blocks: int = 70_000,
        num_host_blocks: int = 0,
    ) -> None:
        """`costs`: of steps; `believed`: what the scheduler starts with, else the same."""
        self.clock = Clock()
        self.backend = SimulatedBackend(self.clock, costs or h200(), num_blocks, num_host_blocks)
        limits = SchedulerLimits(131_072, max_num_seqs, 8192, max_token_gap_s=max_token_gap_s)
        blocks = BlockManager(num_blocks, 64, 128)
        scheduler = Scheduler(blocks, limits, believed or h200(), self.clock)
        self.core = EngineCore(
            self.backend, scheduler, VOCAB_SIZE, is_overlapped=True, clock=self.clock
        )
        self.core.use(options_of_backend(NativeConfig(Path()), self.backend.capacity))
        self.records: list[Record] = []
        self._arrivals: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._running: dict[EngineSequence, tuple[Record, Callable[[list[int]], None] | None]] = {}

    def ask(
        self,
        at_s: float,
        prompt: int | Sequence[int],
        answer: int,
        then: Callable[[list[int]], None] | None = None,
        priority: int = 0,
    ) -> Record:
        """Have a request come; `then` is called with all its tokens when it has ended."""
        number = next(self._numbers)
        tokens = random_tokens(number, prompt) if isinstance(prompt, int) else [*prompt]
        record = Record(len(tokens), at_s)
        self.records.append(record)

        def arrive() -> None:
            sampling = SamplingParams(answer)
            request = EngineRequest(str(number), tuple(tokens), sampling, priority=priority)
            self._running[self.core.scheduler.add(request)] = record, then

        heappush(self._arrivals, (at_s, number, arrive))
        return record

    def run(self, until_s: float = 1000.0) -> None:
        """Let the time pass until all is answered."""
        while self.clock() < until_s and (self._arrivals or self.core.has_work):
            while self._arrivals and self._arrivals[0][0] <= self.clock():
                heappop(self._arrivals)[2]()
            if self.core.has_work:
                self._step()
            else:
                self.clock.now_s = self._arrivals[0][0]

    def _step(self) -> None:
        for sequence, event in self.core.step():
            assert isinstance(event, TokenEvent), event
            record, then = self._running[sequence]
            record.token_s += [self.clock()] * len(event.token_ids)
            record.num_cached = event.num_cached_tokens
            if event.finish_reason is not None:
                record.is_done = True
                del self._running[sequence]
                if then is not None:
                    then(sequence.token_ids)


def random_tokens(seed: int, num: int) -> list[int]:
    """So many tokens that nobody else has."""
    return random.Random(seed).choices(range(1000, VOCAB_SIZE), k=num)


def quantile(values: Sequence[float], share: float) -> float:
    """The value that this share is below."""
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]
