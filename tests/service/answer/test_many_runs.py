"""A request of a thousand answers: begun, ended and freed without a long turn of the loop."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from engines.base import EngineRequest, OnEntered, SamplingParams, TokenEvent, ignore
from engines.errors import QueueFull
from service.answer.generation import Generation
from service.answer.plan import Plan
from service.chat_format import format_named
from service.request import RequestContext
from tests.fake.engine import FakeEngine
from tests.fake.sequence import FakeOptions

NUM_RUNS = 400


class Counting(FakeEngine):
    """Knows how many requests came in one turn of the loop, and how many were open at once."""

    most = num_now = most_open = num_open = 0

    async def ticking(self) -> None:
        while True:
            self.num_now = 0
            await asyncio.sleep(0)

    async def generate(
        self, request: EngineRequest, on_entered: OnEntered = ignore
    ) -> AsyncGenerator[TokenEvent, None]:
        self.num_now += 1
        self.most = max(self.most, self.num_now)
        self.num_open += 1
        self.most_open = max(self.most_open, self.num_open)
        try:
            async with aclosing(super().generate(request, on_entered)) as events:
                async for event in events:
                    yield event
        finally:
            self.num_open -= 1


def many(engine: FakeEngine) -> Generation:
    plan = Plan(
        context=RequestContext(id="many"),
        format=format_named("harmony"),
        stop_token_ids=(200002,),
        prompt_token_ids=(1, 2),
        more_prompts=((1, 2),) * (NUM_RUNS - 1),
        sampling=SamplingParams(max_tokens=2),
        max_model_len=8,
        output="text",
    )
    return Generation(engine, plan)


async def read(generation: Generation) -> int:
    async with aclosing(generation.steps()) as steps:
        return len([step async for step in steps if step.finish_reason])


async def test_a_few_are_begun_in_each_turn_and_all_are_answered() -> None:
    engine = Counting(FakeOptions(script=(5, 6)))
    await engine.start()
    ticking = asyncio.create_task(engine.ticking())
    assert await read(many(engine)) == NUM_RUNS
    assert engine.most <= 16
    ticking.cancel()
    await engine.stop()


async def test_what_failed_leaves_nothing_to_the_garbage_collector() -> None:
    options = FakeOptions(script=(5, 6), step_s=0.01, max_num_seqs=8, max_num_waiting=2)
    engine = FakeEngine(options)
    await engine.start()
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(QueueFull):
            await asyncio.create_task(read(many(engine)))
        await asyncio.sleep(0)
        assert gc.collect() < NUM_RUNS
    finally:
        gc.enable()
    await engine.stop()


async def test_the_engine_gets_what_it_has_places_for_and_half_as_many_more() -> None:
    engine = Counting(FakeOptions(script=(5, 6), step_s=0.005, max_num_seqs=32))
    await engine.start()
    assert await read(many(engine)) == NUM_RUNS
    assert 32 < engine.most_open <= 48
    await engine.stop()


async def test_another_request_of_the_tenant_does_not_wait_for_all_runs() -> None:
    engine = FakeEngine(FakeOptions(script=(5, 6), max_num_seqs=8))
    await engine.start()
    generation = many(engine)
    reading = asyncio.create_task(read(generation))
    while not any(choice.finish_reason for choice in generation.choices):
        await asyncio.sleep(0)
    one = EngineRequest("one", (1, 2), SamplingParams(max_tokens=1))
    assert [event.finish_reason async for event in engine.generate(one)]
    num_ended = sum(choice.finish_reason is not None for choice in generation.choices)
    assert num_ended < NUM_RUNS // 4
    assert await reading == NUM_RUNS
    await engine.stop()


async def test_who_leaves_takes_all_runs_along() -> None:
    engine = FakeEngine(FakeOptions(script=(5, 6), step_s=10.0, max_num_seqs=8))
    await engine.start()
    reading = asyncio.create_task(read(many(engine)))
    async with asyncio.timeout(10):
        while not (await engine.stats()).num_waiting:
            await asyncio.sleep(0)
    reading.cancel()
    await asyncio.wait([reading])
    stats = await engine.stats()
    assert (stats.num_running, stats.num_waiting) == (0, 0)
    await engine.stop()
