"""The engine as its callers see it: answered, aborted or failed, and nothing left behind."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable
from collections.abc import Sequence as Sequence_
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from engines.base import EngineRequest, EngineStats, FinishReason, Outcome, TokenEvent
from engines.errors import (
    EngineDead,
    EngineDraining,
    EngineError,
    EngineStartError,
    InvalidRequest,
    PromptTooLong,
    QueueFull,
    RequestFailed,
)
from engines.native.config import NativeConfig
from engines.native.engine import NativeEngine
from engines.native.host.slots import Span
from engines.native.loop.core import EngineCore

MakeRequest = Callable[..., EngineRequest]
GreedyAnswer = Callable[[Sequence_[int], int], list[int]]
PROMPT = [(7 * i) % 50 for i in range(21)]
TIMEOUT_S = 60.0


class Gate:
    """Holds the engine's thread inside a step until opened, and can make steps fail."""

    def __init__(self) -> None:
        self.is_open = threading.Event()
        self.is_open.set()
        self.is_inside = threading.Event()
        self.error: Exception | None = None  # of every step
        self.poison: int | None = None  # steps with a request of this seed fail

    def __call__(self, spans: Sequence_[Span]) -> None:
        self.is_inside.set()
        assert self.is_open.wait(TIMEOUT_S)
        if self.error is not None:
            raise self.error
        if any(span.slot.seed == self.poison for span in spans):
            raise ValueError("poisoned")


class Rig:
    """A started engine over the hash model, its gate and its core."""

    def __init__(self, engine: NativeEngine, core: EngineCore, gate: Gate, model: Any) -> None:
        self.engine, self.core, self.gate, self.model = engine, core, gate, model

    async def collect(self, request: EngineRequest) -> list[TokenEvent]:
        return [event async for event in self.engine.generate(request)]

    async def death(self) -> EngineDead | None:
        try:
            await self.engine.check_health()
        except EngineDead as error:
            return error
        return None

    async def until(self, is_met: Callable[[EngineStats], bool]) -> EngineStats:
        async with asyncio.timeout(TIMEOUT_S):
            while not is_met(stats := await self.engine.stats()):
                await asyncio.sleep(0.001)
        return stats


MakeRig = Callable[..., Any]


@pytest.fixture
async def make_rig(
    make_model: Callable[..., Any], assemble: Callable[..., EngineCore]
) -> AsyncIterator[MakeRig]:
    rigs: list[Rig] = []

    async def make(num_blocks: int = 64, **options: Any) -> Rig:
        gate = Gate()
        model = make_model(num_blocks=num_blocks, before_step=gate)
        config = NativeConfig(Path("unused"), **options)
        core = assemble(config, model)
        engine = NativeEngine(config, load=lambda _: core)
        await engine.start()
        rigs.append(Rig(engine, core, gate, model))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.gate.is_open.set()
        await rig.engine.stop()
        rig.core.scheduler.blocks.check_integrity()
        assert rig.core.stats().num_free_kv_blocks == rig.core.stats().num_kv_blocks


async def test_answers_stream_token_by_token(
    make_rig: MakeRig, make_request: MakeRequest, greedy_answer: GreedyAnswer
) -> None:
    rig = await make_rig()
    events = await rig.collect(make_request(PROMPT, 6, logprobs=1))
    tokens = [token for event in events for token in event.token_ids]
    assert tokens == greedy_answer(PROMPT, 6)
    assert [e.finish_reason for e in events] == [None] * 5 + [FinishReason.LENGTH]
    assert [lp.token_id for e in events for lp in e.logprobs or ()] == tokens
    assert {e.num_cached_tokens for e in events} == {0}
    again = await rig.collect(make_request(PROMPT, 6))
    assert {e.num_cached_tokens for e in again} == {20}
    assert {e.logprobs for e in again} == {None}


async def test_a_long_prompt_whose_beginning_is_cached_passes_one_that_is_not(
    make_rig: MakeRig, make_request: MakeRequest, greedy_answer: GreedyAnswer
) -> None:
    rig = await make_rig(num_blocks=128, max_num_batched_tokens=8)
    await rig.collect(make_request(PROMPT, 2))
    rig.gate.is_open.clear()
    prompts = [[first, *PROMPT] for first in range(1, 11)]  # longer than a step, nothing cached
    prompts.append([*PROMPT, 7, 8, 9])
    answers: dict[int, list[int]] = {}  # in the order of their first tokens
    are_whole = asyncio.Event()

    def receiver(number: int) -> Callable[[Any], None]:
        def receive(outcome: Outcome) -> None:
            assert not isinstance(outcome, EngineError), outcome
            token_ids = (outcome,) if isinstance(outcome, int) else outcome.token_ids
            answers.setdefault(number, []).extend(token_ids)
            if sum(map(len, answers.values())) == 3 * len(prompts):
                are_whole.set()

        return receive

    for number, prompt in enumerate(prompts):
        await rig.engine.open(make_request(prompt, 3), receiver(number))
    rig.gate.is_open.set()
    async with asyncio.timeout(TIMEOUT_S):
        await are_whole.wait()
    assert [answers[n] for n in range(11)] == [greedy_answer(prompt, 3) for prompt in prompts]
    assert [*answers].index(10) < 4


async def test_many_at_once_and_the_counts_are_true(
    make_rig: MakeRig, make_request: MakeRequest, greedy_answer: GreedyAnswer
) -> None:
    rig = await make_rig(num_blocks=40, max_num_seqs=6)
    prompts = [PROMPT[: 3 + i] for i in range(16)]
    answers = await asyncio.gather(*(rig.collect(make_request(p, 12)) for p in prompts))
    for prompt, events in zip(prompts, answers, strict=True):
        assert [t for e in events for t in e.token_ids] == greedy_answer(prompt, 12)
    stats = await rig.until(lambda s: s.num_running == 0)
    assert stats.generated_tokens == 16 * 12
    assert stats.prompt_tokens == stats.prefix_cache_queries == sum(map(len, prompts))
    assert stats.num_free_kv_blocks == stats.num_kv_blocks == 39
    assert stats.kv_usage == 0.0
    assert stats.num_waiting == 0


async def test_closing_the_iterator_frees_the_blocks(
    make_rig: MakeRig, make_request: MakeRequest
) -> None:
    rig = await make_rig()
    async with aclosing(rig.engine.generate(make_request(PROMPT, 170))) as events:
        await anext(events)
        assert (await rig.engine.stats()).num_running == 1
    stats = await rig.until(lambda s: s.num_running == 0)
    assert stats.num_free_kv_blocks == stats.num_kv_blocks
    assert stats.generated_tokens < 170


async def test_cancelling_while_it_waits_for_its_turn(
    make_rig: MakeRig, make_request: MakeRequest
) -> None:
    rig = await make_rig(max_num_seqs=1)
    rig.gate.is_open.clear()
    running = asyncio.create_task(rig.collect(make_request(PROMPT, 4)))
    waiting = asyncio.create_task(rig.collect(make_request([1], 4)))
    await asyncio.to_thread(rig.gate.is_inside.wait, TIMEOUT_S)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    rig.gate.is_open.set()
    assert len(await running) == 4
    await rig.until(lambda s: s.num_running == s.num_waiting == 0 and s.generated_tokens == 4)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"prompt": [], "max_tokens": 1}, InvalidRequest),
        ({"prompt": [1], "temperature": -1.0}, InvalidRequest),
        ({"prompt": [1], "grammar": "{}"}, InvalidRequest),
        ({"prompt": [1] * 200, "max_tokens": 1}, PromptTooLong),
        ({"prompt": [1] * 150, "max_tokens": 40}, PromptTooLong),
    ],
)
async def test_what_cannot_run_is_refused(
    options: dict[str, Any],
    error: type[EngineError],
    make_rig: MakeRig,
    make_request: MakeRequest,
) -> None:
    rig = await make_rig(num_blocks=40)
    with pytest.raises(error):
        await rig.collect(make_request(**options))
    assert len(await rig.collect(make_request([1], 2))) == 2


async def test_the_queue_is_bounded(make_rig: MakeRig, make_request: MakeRequest) -> None:
    rig = await make_rig(max_num_waiting=2, max_num_seqs=1)
    rig.gate.is_open.clear()
    tasks = [asyncio.create_task(rig.collect(make_request([1, i], 3))) for i in range(1)]
    await asyncio.to_thread(rig.gate.is_inside.wait, TIMEOUT_S)
    tasks += [asyncio.create_task(rig.collect(make_request([2, i], 3))) for i in range(5)]
    await asyncio.sleep(0)
    rig.gate.is_open.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(r) for r in results] == [list] * 3 + [QueueFull] * 3


async def test_a_failed_step_fails_its_requests_and_no_others(
    make_rig: MakeRig,
    make_request: MakeRequest,
    greedy_answer: GreedyAnswer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = await make_rig(max_num_seqs=1)
    rig.gate.poison = 13
    names = {"good": 12, "bad": 13, "late": 14}
    requests = [make_request(PROMPT, 5, request_id=i, seed=seed) for i, seed in names.items()]
    with caplog.at_level(logging.ERROR):
        good, bad, late = await asyncio.gather(
            *(rig.collect(request) for request in requests), return_exceptions=True
        )
    assert isinstance(bad, RequestFailed)
    assert "ValueError: poisoned" in str(bad)
    assert "bad" in caplog.text
    for events in (good, late):
        assert isinstance(events, list)
        assert [t for e in events for t in e.token_ids] == greedy_answer(PROMPT, 5)
    await rig.engine.check_health()


@pytest.mark.parametrize(
    ("error", "num_requests"), [(ValueError("x"), 3), (AssertionError("x"), 1)]
)
async def test_an_engine_that_cannot_go_on_is_dead_and_says_so(
    error: Exception, num_requests: int, make_rig: MakeRig, make_request: MakeRequest
) -> None:
    rig = await make_rig(max_num_seqs=1)
    rig.gate.error = error
    tasks = [rig.collect(make_request(PROMPT, 5)) for _ in range(num_requests + 2)]
    results = await asyncio.gather(*tasks, return_exceptions=True)
    kinds = [type(result) for result in results]
    assert kinds == [RequestFailed] * num_requests + [EngineDead] * 2
    for call in (rig.engine.check_health(), rig.collect(make_request([1]))):
        with pytest.raises(EngineDead, match=type(error).__name__):
            await call


async def test_broken_bookkeeping_is_fatal(
    make_rig: MakeRig, make_request: MakeRequest, caplog: pytest.LogCaptureFixture
) -> None:
    rig = await make_rig()
    await rig.collect(make_request([1], 1))
    lost, _ = rig.core.scheduler.blocks.pool._spare.popitem()
    async with asyncio.timeout(TIMEOUT_S):
        while (error := await rig.death()) is None:
            await asyncio.sleep(0.01)
    assert "IntegrityError" in str(error)
    assert "scheduling failed" in caplog.text
    rig.core.scheduler.blocks.pool._free[lost] = None


async def test_drain_lets_running_ones_end(make_rig: MakeRig, make_request: MakeRequest) -> None:
    rig = await make_rig(max_num_seqs=1)
    rig.gate.is_open.clear()
    tasks = [asyncio.create_task(rig.collect(make_request(PROMPT, 5))) for _ in range(2)]
    await asyncio.to_thread(rig.gate.is_inside.wait, TIMEOUT_S)
    draining = asyncio.create_task(rig.engine.drain())
    await asyncio.sleep(0)
    with pytest.raises(EngineDraining):
        await rig.collect(make_request([1]))
    assert not draining.done()
    rig.gate.is_open.set()
    await asyncio.wait_for(draining, TIMEOUT_S)
    assert [len(await task) for task in tasks] == [5, 5]


async def test_stop_ends_open_streams_and_may_be_called_twice(
    make_rig: MakeRig, make_request: MakeRequest
) -> None:
    rig = await make_rig()
    rig.gate.is_open.clear()
    task = asyncio.create_task(rig.collect(make_request(PROMPT, 170)))
    await asyncio.to_thread(rig.gate.is_inside.wait, TIMEOUT_S)
    stopping = asyncio.create_task(rig.engine.stop())
    await asyncio.sleep(0)
    rig.gate.is_open.set()
    await asyncio.wait_for(stopping, TIMEOUT_S)
    with pytest.raises(EngineDead, match="stopped"):
        await task
    await rig.engine.stop()
    for call in (rig.engine.check_health(), rig.engine.stats(), rig.collect(make_request([1]))):
        with pytest.raises(EngineDead):
            await call
    assert not [t for t in threading.enumerate() if t.name == "native-engine"]


async def test_an_idle_engine_takes_no_steps_and_wakes_at_once(
    make_rig: MakeRig, make_request: MakeRequest
) -> None:
    rig = await make_rig()
    await rig.collect(make_request([1], 3))
    num_steps = rig.model.num_steps
    await rig.until(lambda s: s.num_running == 0)
    await asyncio.sleep(0.02)
    assert rig.model.num_steps == num_steps == 3
    assert len(await asyncio.wait_for(rig.collect(make_request([1], 3)), TIMEOUT_S)) == 3


async def test_a_bad_folder_does_not_start(tmp_path: Path) -> None:
    engine = NativeEngine(NativeConfig(tmp_path))
    with pytest.raises(EngineStartError, match=r"config\.json"):
        await engine.start()
    with pytest.raises(EngineDead):
        await engine.check_health()
    await engine.stop()


async def test_what_loading_raises_becomes_a_start_error() -> None:
    def load(config: NativeConfig) -> EngineCore:
        raise RuntimeError("DefaultCPUAllocator: not enough memory")

    with pytest.raises(EngineStartError, match=r"some-model: RuntimeError: .*not enough memory"):
        await NativeEngine(NativeConfig(Path("some-model")), load=load).start()


async def test_a_start_that_is_given_up_leaves_no_thread(make_core: Callable[..., Any]) -> None:
    is_loading, may_load = threading.Event(), threading.Event()
    loaders: list[threading.Thread] = []

    def load(config: NativeConfig) -> EngineCore:
        loaders.append(threading.current_thread())
        is_loading.set()
        assert may_load.wait(TIMEOUT_S)
        core: EngineCore = make_core()
        return core

    start = asyncio.create_task(NativeEngine(NativeConfig(Path("unused")), load=load).start())
    assert await asyncio.to_thread(is_loading.wait, TIMEOUT_S)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    may_load.set()
    await asyncio.to_thread(loaders[0].join, TIMEOUT_S)
    assert not loaders[0].is_alive()


async def test_random_arrivals_closings_and_failures_leave_nothing(
    make_rig: MakeRig, make_request: MakeRequest, greedy_answer: GreedyAnswer
) -> None:
    rig = await make_rig(num_blocks=30, max_num_seqs=4, max_num_batched_tokens=8)

    async def take(number: int) -> list[int]:
        prompt = PROMPT[: 1 + number % 17]
        request = make_request(prompt, 3 + number % 11, seed=number)
        tokens: list[int] = []
        async with aclosing(rig.engine.generate(request)) as events:
            async for event in events:
                tokens += event.token_ids
                if number % 5 == 0 and len(tokens) == 2:
                    return tokens
        return tokens

    rig.gate.poison = 33
    results = await asyncio.gather(*(take(i) for i in range(60)), return_exceptions=True)
    failed = [i for i, r in enumerate(results) if isinstance(r, BaseException)]
    assert 33 in failed
    assert len(failed) <= 4  # at most the step it was in
    for i, tokens in enumerate(results):
        if i not in failed:
            num_tokens = 2 if i % 5 == 0 else 3 + i % 11
            assert tokens == greedy_answer(PROMPT[: 1 + i % 17], num_tokens)
    await rig.until(lambda s: s.num_running == s.num_waiting == 0)
