"""A step without memory costs one request; the others and the engine go on."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from collections.abc import Sequence as Sequence_
from pathlib import Path
from typing import Any

import pytest
import torch

from engines.base import EngineRequest
from engines.errors import EngineDead, OutOfMemory
from engines.native.config import NativeConfig
from engines.native.engine import NativeEngine
from engines.native.host.slots import Span

Start = Callable[..., Any]
LONG = [(7 * i) % 50 for i in range(60)]
FEW_TOKENS = 32


@pytest.fixture
async def start(make_core: Callable[..., Any]) -> AsyncIterator[Start]:
    """An engine over the hash model that does this before each step."""
    engines = []

    async def make(before_step: Callable[[Sequence_[Span]], None], **limits: Any) -> NativeEngine:
        limits = {"max_num_batched_tokens": 128, **limits}
        core = make_core(before_step=before_step, **limits)
        engines.append(NativeEngine(NativeConfig(Path("unused")), lambda _config: core))
        await engines[-1].start()
        return engines[-1]

    yield make
    for engine in engines:
        await engine.stop()


async def tokens_of(engine: NativeEngine, request: EngineRequest) -> list[int]:
    return [id async for event in engine.generate(request) for id in event.token_ids]


def too_long(spans: Sequence_[Span]) -> bool:
    return sum(span.num_tokens for span in spans) > FEW_TOKENS


def raise_real_one() -> None:
    torch.empty(1 << 46)  # the allocator's own words


def raise_cuda_one() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def raise_memory_error() -> None:
    raise MemoryError


@pytest.mark.parametrize("fail", [raise_real_one, raise_cuda_one, raise_memory_error])
async def test_the_largest_request_ends_and_its_neighbours_go_on(
    fail: Callable[[], None], start: Start, make_request: Any, greedy_answer: Any
) -> None:
    def before_step(spans: Sequence_[Span]) -> None:
        if too_long(spans):
            fail()

    engine = await start(before_step)
    work = [tokens_of(engine, make_request(prompt, 12)) for prompt in ([1, 2], LONG, [3, 4])]
    first, lost, second = await asyncio.gather(*work, return_exceptions=True)
    assert isinstance(lost, OutOfMemory)
    assert [first, second] == [greedy_answer(prompt, 12) for prompt in ([1, 2], [3, 4])]
    for _ in range(5):  # a client that insists does not end the engine
        with pytest.raises(OutOfMemory):
            await tokens_of(engine, make_request(LONG, 12))
    await engine.check_health()
    stats = await engine.stats()
    assert stats.num_free_kv_blocks == stats.num_kv_blocks
    assert await tokens_of(engine, make_request(LONG[:20], 3)) == greedy_answer(LONG[:20], 3)


async def test_what_a_failed_step_held_is_freed(start: Start, make_request: Any) -> None:
    held: list[weakref.ref[torch.Tensor]] = []

    def before_step(spans: Sequence_[Span]) -> None:
        activations = torch.ones(1000)
        held.append(weakref.ref(activations))
        if too_long(spans):
            raise torch.OutOfMemoryError("CUDA out of memory")

    engine = await start(before_step)
    with pytest.raises(OutOfMemory):
        await tokens_of(engine, make_request(LONG, 3))
    await tokens_of(engine, make_request([1], 3))
    assert [ref() for ref in held] == [None] * len(held)


async def test_an_engine_without_memory_for_a_few_tokens_is_dead(
    start: Start, make_request: Any
) -> None:
    def before_step(spans: Sequence_[Span]) -> None:
        raise MemoryError

    engine = await start(before_step)
    for _ in range(3):
        with pytest.raises(OutOfMemory):
            await tokens_of(engine, make_request([1, 2], 3))
    with pytest.raises(EngineDead, match="MemoryError"):
        await tokens_of(engine, make_request([1, 2], 3))
    with pytest.raises(EngineDead):
        await engine.check_health()


async def test_a_thread_that_hangs_shows_in_the_steps(start: Start, make_request: Any) -> None:
    inside, is_open = threading.Event(), threading.Event()

    def before_step(spans: Sequence_[Span]) -> None:
        inside.set()
        assert is_open.wait(60)

    engine = await start(before_step)
    running = asyncio.create_task(tokens_of(engine, make_request([1, 2], 3)))
    await asyncio.to_thread(inside.wait, 10)
    before, after = await engine.stats(), await engine.stats()
    assert (before.num_running, before.num_steps, after.num_steps) == (1, 0, 0)
    is_open.set()
    await running
    assert (await engine.stats()).num_steps >= 3


async def test_a_failure_that_lasts_ends_the_engine(start: Start, make_request: Any) -> None:
    """What oneDNN says once it had no memory for a kernel, and then to every step."""

    def before_step(spans: Sequence_[Span]) -> None:
        if too_long(spans):
            raise RuntimeError("could not create a primitive")

    engine = await start(before_step)
    work = [tokens_of(engine, make_request(prompt, 40)) for prompt in ([1, 2], LONG)]
    ends = await asyncio.gather(*work, return_exceptions=True)
    assert [type(end) for end in ends] == [EngineDead, EngineDead]
    with pytest.raises(EngineDead, match="could not create a primitive"):
        await engine.check_health()
