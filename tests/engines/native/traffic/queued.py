"""The engine with its queue, in simulated time, and its clients."""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeVar

import pytest

from engines.base import (
    EngineInfo,
    EngineRequest,
    EngineStats,
    Outcome,
    Receive,
    SamplingParams,
    TokenEvent,
)
from engines.errors import EngineError
from engines.native.loop.core import EngineCore
from engines.native.loop.sequence import Sequence
from engines.native.runner import find_prefix
from engines.native.step_costs import StepCosts
from engines.queueing.admission import QueuedEngine
from engines.queueing.fair_queue import Entry
from engines.queueing.own_order import ByArrival, ShortestFirst
from tests.engines.native.scheduling.simulation import (
    VOCAB_SIZE,
    Clock,
    SimulatedBackend,
    Simulation,
    h200,
)

T = TypeVar("T")


class _Selector(selectors.SelectSelector):
    """Passes the time until the next timer instead of waiting for it."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "everybody waits, and nothing will ever happen"
        self._clock.now_s += max(timeout, 0.0)
        return super().select(0)


def simulate(monkeypatch: pytest.MonkeyPatch, run: Callable[[Clock], Coroutine[Any, Any, T]]) -> T:
    """Run it in an event loop whose time passes when nothing is left to do.

    `time.monotonic` shows that time meanwhile. The engine's steps have a clock of their own: its
    thread waits for them, and the loop does not.
    """
    clock = Clock()

    def loop() -> asyncio.AbstractEventLoop:
        loop = asyncio.SelectorEventLoop(_Selector(clock))
        monkeypatch.setattr(loop, "time", clock)
        return loop

    with monkeypatch.context() as patched, asyncio.Runner(loop_factory=loop) as runner:
        patched.setattr(time, "monotonic", clock)
        return runner.run(run(clock))


@dataclass(eq=False)
class Run:
    """One request inside the engine."""

    request: EngineRequest
    num_cached_tokens: int
    receive: Receive | None = None
    arrived_s: float = 0.0
    sequence: Sequence | None = None


class SimulatedRunner:
    """Implements engines.base.Runner: steps a core in the loop, as the worker's thread would."""

    def __init__(self, core: EngineCore, engine_clock: Clock, clock: Clock) -> None:
        self._core, self._engine_clock, self._clock = core, engine_clock, clock
        self._inbox: list[tuple[bool, Run]] = []  # begun or aborted
        self._runs: dict[Sequence, Run] = {}
        self._stepping: asyncio.Task[None] | None = None

    @property
    def info(self) -> EngineInfo:
        limits = self._core.scheduler.limits
        return EngineInfo(
            "simulated",
            "1",
            limits.max_model_len,
            VOCAB_SIZE,
            limits.max_num_seqs,
            limits.max_num_batched_tokens,
        )

    async def start(self) -> None: ...

    async def prepare(self, request: EngineRequest) -> Run:
        blocks, most = self._core.scheduler.blocks, self.info.max_model_len
        return Run(request, find_prefix(request, most, blocks).num_tokens)

    def num_cached_tokens(self, run: Run) -> int | None:
        return run.num_cached_tokens

    def begin(self, run: Run, receive: Receive, arrived_s: float) -> None:
        run.receive, run.arrived_s = receive, arrived_s
        self._post(True, run)

    def abort(self, run: Run) -> None:
        self._post(False, run)

    async def stats(self) -> EngineStats:
        return self._core.stats()

    async def check_health(self) -> None: ...

    async def stop(self) -> None:
        if self._stepping is not None:
            await self._stepping

    def _post(self, is_begun: bool, run: Run) -> None:
        self._inbox.append((is_begun, run))
        if self._stepping is None or self._stepping.done():
            self._stepping = asyncio.create_task(self._work())

    async def _work(self) -> None:
        while self._inbox or self._core.has_work:
            self._engine_clock.now_s = self._clock.now_s
            inbox, self._inbox = self._inbox, []
            for is_begun, run in inbox:
                self._carry_out(is_begun, run)
            outcomes = self._core.step()
            await asyncio.sleep(self._engine_clock.now_s - self._clock.now_s)
            for sequence, outcome in outcomes:
                self._deliver(sequence, outcome)

    def _carry_out(self, is_begun: bool, run: Run) -> None:
        if is_begun:
            run.sequence = self._core.scheduler.add(run.request, num_cached=run.num_cached_tokens)
            run.sequence.arrived_s = run.arrived_s
            self._runs[run.sequence] = run
        elif run.sequence in self._runs:
            del self._runs[run.sequence]
            self._core.scheduler.remove(run.sequence)

    def _deliver(self, sequence: Sequence, outcome: Outcome) -> None:
        run = self._runs.get(sequence)
        if run is None:
            return  # aborted while the step was computed
        if not isinstance(outcome, TokenEvent) or outcome.finish_reason is not None:
            del self._runs[sequence]
        assert run.receive is not None
        run.receive(outcome)


Order = type[ByArrival[Entry[Run]]]


@dataclass
class Told:
    """What became of one request; times are seconds of the simulation."""

    asked_s: float
    token_times: list[float] = field(default_factory=list)
    num_cached: int = 0
    error: EngineError | None = None
    ended_s: float = 0.0
    is_whole: bool = False

    @property
    def ttft_s(self) -> float:
        return self.token_times[0] - self.asked_s

    @property
    def gaps_s(self) -> list[float]:
        return [after - before for before, after in pairwise(self.token_times)]


class Client:
    """Asks one engine."""

    def __init__(self, engine: QueuedEngine[Run], clock: Clock, backend: SimulatedBackend) -> None:
        self._engine, self._clock, self._backend = engine, clock, backend
        self._num_asked = 0

    @property
    def busy_s(self) -> float:
        """How long the device has computed."""
        return self._backend.busy_s

    async def ask(self, prompt: Iterable[int], num_tokens: int, **options: Any) -> Told:
        """Send a request now and read its answer to the end."""
        self._num_asked += 1
        told = Told(self._clock.now_s)
        sampling = SamplingParams(num_tokens, temperature=1.0, seed=0)
        request = EngineRequest(f"r{self._num_asked}", tuple(prompt), sampling, **options)
        ended = asyncio.get_running_loop().create_future()

        def receive(outcome: Outcome) -> None:
            if isinstance(outcome, EngineError):
                told.error = outcome
            elif isinstance(outcome, int):
                told.token_times.append(self._clock.now_s)
            else:
                told.token_times += [self._clock.now_s] * len(outcome.token_ids)
                told.num_cached = outcome.num_cached_tokens
                told.is_whole = outcome.finish_reason is not None
            if told.error or told.is_whole:
                ended.set_result(None)

        try:
            entry = await self._engine.open(request, receive)
            await ended
            self._engine.close(entry)
        except EngineError as error:
            told.error = error
        told.ended_s = self._clock.now_s
        return told

    async def ask_at(
        self, at_s: float, prompt: Iterable[int], num_tokens: int, **options: Any
    ) -> Told:
        """Send it when the time has come."""
        await asyncio.sleep(at_s - self._clock.now_s)
        return await self.ask(prompt, num_tokens, **options)


@asynccontextmanager
async def serving(
    clock: Clock,
    *,
    max_num_seqs: int = 512,
    max_num_waiting: int = 10_000,
    max_token_gap_s: float | None = 0.05,
    own_order: Order = ShortestFirst[Entry[Run]],
    costs: Callable[[], StepCosts] = h200,
) -> AsyncIterator[Client]:
    """Run an engine on an H200, at the balanced goal by default; it is empty at the end."""
    simulation = Simulation(
        max_token_gap_s=max_token_gap_s,
        max_num_seqs=max_num_seqs,
        costs=costs(),
        believed=costs(),
    )
    runner = SimulatedRunner(simulation.core, simulation.clock, clock)
    engine = QueuedEngine(runner, max_num_waiting, own_order=own_order)
    await engine.start()
    yield Client(engine, clock, simulation.backend)
    await engine.drain()
    await engine.stop()
    simulation.core.scheduler.blocks.check_integrity()
    stats = simulation.core.stats()
    assert stats.num_free_kv_blocks == stats.num_kv_blocks
