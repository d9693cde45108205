"""What stands before every engine: how much it is given at a time, and what becomes of the rest."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

import engines.admission
from engines.admission import Entry, QueuedEngine
from engines.base import (
    EngineInfo,
    EngineRequest,
    EngineStats,
    FinishReason,
    Outcome,
    Receive,
    SamplingParams,
    TokenEvent,
)
from engines.errors import EngineDead, EngineDraining, Overloaded, QueueFull, RequestFailed

BUDGET = 100  # tokens of a step


class Recorder:
    """A runner that runs nothing: the test says what it gives."""

    def __init__(self, max_num_seqs: int = 8) -> None:
        self.info = EngineInfo("recorder", "1", 1000, 1000, max_num_seqs, BUDGET)
        self.begun: list[str] = []
        self.aborted: list[str] = []
        self.receive: dict[str, Receive] = {}
        self.may_prepare = asyncio.Event()
        self.may_prepare.set()
        self.error: Exception | None = None

    async def start(self) -> None: ...

    async def prepare(self, request: EngineRequest) -> EngineRequest:
        await self.may_prepare.wait()
        return request

    def begin(self, run: EngineRequest, receive: Receive, arrived_s: float) -> None:
        self.begun.append(run.request_id)
        self.receive[run.request_id] = receive
        if self.error is not None:
            raise self.error

    def abort(self, run: EngineRequest) -> None:
        self.aborted.append(run.request_id)

    async def stats(self) -> EngineStats:
        return EngineStats(num_waiting=1)

    async def check_health(self) -> None: ...

    async def stop(self) -> None: ...

    def give(self, name: str, *, cached: int = 0, is_last: bool = False) -> None:
        reason = FinishReason.STOP if is_last else None
        self.receive[name](TokenEvent((1,), None, reason, cached))


class Clock:
    """The time that the queue and its timers see; made inside the test's loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        monkeypatch.setattr(engines.admission, "time", self)
        monkeypatch.setattr(asyncio.get_running_loop(), "time", self.monotonic)

    def monotonic(self) -> float:
        return self.now_s

    async def pass_to(self, now_s: float) -> None:
        """Let the timers run that are due by then."""
        self.now_s = now_s
        for _ in range(3):
            await asyncio.sleep(0)


async def engine_of(runner: Recorder, max_num_waiting: int = 100) -> QueuedEngine[EngineRequest]:
    engine = QueuedEngine(runner, max_num_waiting)
    await engine.start()
    return engine


def request(name: str, num_tokens: int = 1, **options: Any) -> EngineRequest:
    return EngineRequest(name, (1,) * num_tokens, SamplingParams(100), **options)


async def learn(
    runner: Recorder, open_: Open, clock: Clock, num_tokens: int, seconds: float
) -> None:
    """Let the queue see how long so many tokens take."""
    for number in range(3):
        await open_(request(f"known{number}", num_tokens))
        clock.now_s += seconds
        runner.give(f"known{number}", is_last=True)


Open = Callable[[EngineRequest], Any]


def opener(engine: QueuedEngine[EngineRequest]) -> tuple[Open, list[Outcome]]:
    heard: list[Outcome] = []

    async def open_(request: EngineRequest) -> Entry[EngineRequest]:
        return await engine.open(request, heard.append)

    return open_, heard


async def test_no_more_than_the_engine_has_places_for() -> None:
    runner = Recorder(max_num_seqs=2)
    engine = await engine_of(runner)
    open_, _ = opener(engine)
    for name in "abcd":
        await open_(request(name))
    assert runner.begun == ["a", "b"]
    assert (await engine.stats()).num_waiting == 3  # one of them within the engine
    runner.give("a")
    assert runner.begun == ["a", "b"]
    runner.give("a", is_last=True)
    assert runner.begun == ["a", "b", "c"]


async def test_prompts_of_two_steps_lie_ahead_of_the_engine_and_no_more() -> None:
    runner = Recorder()
    open_, _ = opener(await engine_of(runner))
    for name in "abcde":
        await open_(request(name, 60))
    assert runner.begun == ["a", "b", "c"]  # 180 tokens; four would be 240
    runner.give("a")
    assert runner.begun == ["a", "b", "c", "d"]


async def test_two_go_ahead_however_long_they_are() -> None:
    runner = Recorder()
    open_, _ = opener(await engine_of(runner))
    for name in "abc":
        await open_(request(name, 900))
    assert runner.begun == ["a", "b"]


async def test_the_urgent_are_not_held_by_what_is_less_so() -> None:
    runner = Recorder()
    open_, _ = opener(await engine_of(runner))
    for name in "abc":
        await open_(request(name, 900, priority=1))
    await open_(request("urgent", 900, priority=0))
    await open_(request("patient", 900, priority=2))
    assert runner.begun == ["a", "b", "urgent"]


async def test_what_was_cached_is_not_charged() -> None:
    runner = Recorder(max_num_seqs=1)
    open_, _ = opener(await engine_of(runner))
    await open_(request("a1", 60, tenant="a"))
    for name in ("b1", "a2"):
        await open_(request(name, 50, tenant=name[0]))
    runner.give("a1", cached=59, is_last=True)
    runner.give("b1", is_last=True)
    await open_(request("b2", 50, tenant="b"))
    assert runner.begun == ["a1", "b1", "a2"]
    await open_(request("a3", 50, tenant="a"))
    runner.give("a2", is_last=True)
    assert runner.begun[-1] == "b2"  # a: 1 + 50 + 4, b: 50 + 2


async def test_who_has_waited_as_long_as_it_may_is_told_before_it_begins() -> None:
    runner = Recorder(max_num_seqs=1)
    open_, heard = opener(await engine_of(runner))
    for name, limit_s in (("a", 0.01), ("b", 0.02), ("c", None)):  # who enters at once may be late
        await open_(request(name, max_wait_s=limit_s))
    async with asyncio.timeout(60):
        while not heard:
            await asyncio.sleep(0.01)
    assert [type(outcome) for outcome in heard] == [Overloaded]
    runner.give("a", is_last=True)
    runner.give("c", is_last=True)
    assert (runner.begun, runner.aborted) == (["a", "c"], [])


@pytest.mark.parametrize(("now_s", "begun"), [(89, "b"), (92, "c")])
async def test_whose_first_token_would_come_too_late_is_not_let_in(
    monkeypatch: pytest.MonkeyPatch, now_s: float, begun: str
) -> None:
    """A prompt takes time too, as much as those before it took."""
    clock = Clock(monkeypatch)
    runner = Recorder(max_num_seqs=1)
    open_, heard = opener(await engine_of(runner))
    await learn(runner, open_, clock, 10, seconds=10)
    await open_(request("a", 10))
    runner.give("a")
    clock.now_s = 0
    await open_(request("b", 10, max_wait_s=100.0))
    await open_(request("c", 10))
    clock.now_s = now_s
    runner.give("a", is_last=True)
    assert runner.begun[-1] == begun
    assert any(isinstance(outcome, Overloaded) for outcome in heard) == (begun == "c")


async def test_one_long_pause_does_not_shut_the_door(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    runner = Recorder(max_num_seqs=1)
    open_, _ = opener(await engine_of(runner))
    await learn(runner, open_, clock, 1, seconds=1)
    await open_(request("a"))
    clock.now_s = 1000
    runner.give("a")
    await open_(request("b", max_wait_s=30.0))
    clock.now_s += 10
    runner.give("a", is_last=True)
    assert runner.begun[-2:] == ["a", "b"]


async def test_who_had_others_before_it_waits_no_longer_inside_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An engine may grow slow while it has a request; who found nobody before it is never told."""
    clock = Clock(monkeypatch)
    runner = Recorder()
    open_, heard = opener(await engine_of(runner))
    await open_(request("first", max_wait_s=2.0))
    await open_(request("second", max_wait_s=2.0))
    await open_(request("third", max_wait_s=2.0))
    runner.give("third")
    await clock.pass_to(1.9)
    assert (runner.begun, runner.aborted) == (["first", "second", "third"], [])
    await clock.pass_to(2.1)
    assert runner.aborted == ["second"]
    assert [type(outcome) for outcome in heard] == [TokenEvent, Overloaded]
    await clock.pass_to(60)
    assert runner.aborted == ["second"]


async def test_long_prompts_at_twice_what_an_uneven_engine_can_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The bound holds for all, and hardly a prompt is read in vain."""
    clock, chance, limit_s = Clock(monkeypatch), random.Random(1), 3.0
    runner = Recorder(max_num_seqs=100)
    open_, _ = opener(await engine_of(runner))
    start_s, waits_s = 1000.0, list[float]()
    reading, ready_s = "", 0.0
    for tick in range(6000):  # of 20 ms
        await clock.pass_to(start_s + tick / 50)
        if tick % 25 == 0:
            await open_(request(str(tick), 900, max_wait_s=limit_s))
        if reading in runner.begun and clock.now_s >= ready_s:
            waits_s.append(clock.now_s - start_s - int(reading) / 50)
            runner.give(reading, is_last=True)
        left = [name for name in runner.begun if name not in runner.aborted]
        if left[len(waits_s) :] and left[len(waits_s)] != reading:
            reading, ready_s = left[len(waits_s)], clock.now_s + chance.uniform(0.6, 1.4)
    assert max(waits_s) <= limit_s + 0.02
    assert len(waits_s) > 100  # of 120 that it could have read
    assert len(runner.aborted) <= 6


async def test_who_does_not_fit_is_told_and_who_prepares_counts() -> None:
    runner = Recorder(max_num_seqs=1)
    engine = await engine_of(runner, max_num_waiting=2)
    open_, _ = opener(engine)
    await open_(request("running"))
    runner.may_prepare.clear()
    preparing = [asyncio.create_task(open_(request(name))) for name in "ab"]
    await asyncio.sleep(0)
    with pytest.raises(QueueFull, match="2 requests wait already and max_num_waiting is 2"):
        await open_(request("c"))
    runner.may_prepare.set()
    waiting = await asyncio.gather(*preparing)
    with pytest.raises(QueueFull):
        await open_(request("c"))
    engine.close(waiting[0])
    await open_(request("c"))
    assert runner.aborted == []


async def test_closing_aborts_what_runs_and_nothing_is_heard_of_it() -> None:
    runner = Recorder(max_num_seqs=1)
    engine = await engine_of(runner)
    open_, heard = opener(engine)
    entry = await open_(request("a"))
    await open_(request("b"))
    engine.close(entry)
    engine.close(entry)
    assert (runner.aborted, runner.begun) == (["a"], ["a", "b"])
    runner.give("a")
    assert heard == []


async def test_a_request_that_cannot_begin_fails_alone() -> None:
    runner = Recorder()
    open_, heard = opener(await engine_of(runner))
    runner.error = ValueError("a bug")
    await open_(request("a"))
    [error] = heard
    assert isinstance(error, RequestFailed)
    assert str(error) == "ValueError: a bug"
    runner.error = None
    await open_(request("b"))
    runner.give("b")
    assert len(heard) == 2


async def test_drain_waits_for_those_that_wait_and_those_that_prepare() -> None:
    runner = Recorder(max_num_seqs=1)
    engine = await engine_of(runner)
    open_, _ = opener(engine)
    await open_(request("a"))
    await open_(request("b"))
    runner.may_prepare.clear()
    preparing = asyncio.create_task(open_(request("c")))
    await asyncio.sleep(0)
    draining = asyncio.create_task(engine.drain())
    await asyncio.sleep(0)
    with pytest.raises(EngineDraining):
        await open_(request("d"))
    runner.give("a", is_last=True)
    runner.give("b", is_last=True)
    await asyncio.sleep(0)
    assert not draining.done()
    runner.may_prepare.set()
    await preparing
    await asyncio.sleep(0)
    assert not draining.done()
    runner.give("c", is_last=True)
    async with asyncio.timeout(60):
        await draining


async def test_stop_ends_what_waits_and_what_prepares() -> None:
    runner = Recorder(max_num_seqs=1)
    engine = await engine_of(runner)
    open_, heard = opener(engine)
    await open_(request("a"))
    await open_(request("b"))
    runner.may_prepare.clear()
    preparing = asyncio.create_task(open_(request("c")))
    await asyncio.sleep(0)
    await engine.stop()
    assert [type(outcome) for outcome in heard] == [EngineDead]
    runner.may_prepare.set()
    with pytest.raises(EngineDead):
        await preparing
    assert runner.begun == ["a"]
