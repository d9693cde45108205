"""The whole engine on a random checkpoint: greedy tokens are the same whatever else happens."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch

from engines.base import EngineRequest
from engines.native.config import NativeConfig
from engines.native.engine import NativeEngine
from tests.engines.native.small_model import small_config, write_small

VOCAB_SIZE = 300
NUM_TOKENS = 16
LONG = [(17 * i * i + 5) % VOCAB_SIZE for i in range(70)]
PROMPTS = [LONG, LONG[:33], [3], [*LONG[:64], 9, 8], [7] * 20, LONG[10:50]]

MakeRequest = Callable[..., EngineRequest]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    config = small_config(VOCAB_SIZE) | {"num_hidden_layers": 2}  # one of each kind
    folder = write_small(tmp_path_factory.mktemp("checkpoint"), config)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield folder
    torch.set_num_threads(before)


@asynccontextmanager
async def running(model_dir: Path, **options: Any) -> AsyncIterator[NativeEngine]:
    defaults = {"block_size": 4, "num_kv_blocks": 400, "max_num_seqs": 8}
    engine = NativeEngine(NativeConfig(model_dir, **(defaults | options)))
    await engine.start()
    try:
        yield engine
        await engine.drain()
        while (stats := await engine.stats()).num_running:
            await asyncio.sleep(0.001)
        assert stats.num_free_kv_blocks == stats.num_kv_blocks
        await engine.check_health()  # the worker checked every block when it went idle
    finally:
        await engine.stop()


async def tokens_of(engine: NativeEngine, request: EngineRequest) -> list[int]:
    return [t async for event in engine.generate(request) for t in event.token_ids]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def alone(model_dir: Path, make_request: MakeRequest) -> list[list[int]]:
    """Each prompt's answer with nothing around it: no chunks, no neighbours, no cache."""
    async with running(model_dir, enable_prefix_caching=False) as engine:
        answers = [await tokens_of(engine, make_request(p, NUM_TOKENS)) for p in PROMPTS]
    assert len({tuple(answer) for answer in answers}) == len(PROMPTS)
    return answers


@pytest.mark.parametrize(
    "options",
    [
        {"max_num_batched_tokens": 1},
        {"max_num_batched_tokens": 7},
        pytest.param({"max_num_batched_tokens": 512}, marks=pytest.mark.slow),
        pytest.param({"max_num_seqs": 2}, marks=pytest.mark.slow),
        {"num_kv_blocks": 50, "max_num_batched_tokens": 16, "max_model_len": 110},
        {"block_size": 16, "num_kv_blocks": 30},
    ],
)
async def test_answers_do_not_depend_on_the_load(
    options: dict[str, Any], model_dir: Path, alone: list[list[int]], make_request: MakeRequest
) -> None:
    async with running(model_dir, **options) as engine:
        is_preempted = options.get("num_kv_blocks") != 50  # the one that has too few blocks
        for _ in range(50):  # on a busy machine the requests may come one after the other
            answers = await asyncio.gather(
                *(tokens_of(engine, make_request(p, NUM_TOKENS)) for p in PROMPTS)
            )
            assert answers == alone
            if is_preempted or (await engine.stats()).num_preemptions:
                return
    pytest.fail("no request was ever preempted")


async def test_prefix_hits_change_nothing(
    model_dir: Path, alone: list[list[int]], make_request: MakeRequest
) -> None:
    async with running(model_dir, max_num_batched_tokens=24) as engine:
        for _ in range(2):
            assert [await tokens_of(engine, make_request(p, NUM_TOKENS)) for p in PROMPTS] == alone
        turn = LONG + alone[0][:13] + [4, 4]
        hit = [event async for event in engine.generate(make_request(turn, 10))]
    assert hit[0].num_cached_tokens == 80  # 70 + 13 tokens are in the cache, in blocks of 4
    async with running(model_dir, enable_prefix_caching=False) as engine:
        cold = await tokens_of(engine, make_request(turn, 10))
    assert [t for event in hit for t in event.token_ids] == cold


async def test_closing_half_way_disturbs_nobody(
    model_dir: Path, alone: list[list[int]], make_request: MakeRequest
) -> None:
    async with running(model_dir, num_kv_blocks=80, max_num_batched_tokens=16) as engine:

        async def leave_early(prompt: list[int]) -> None:
            async with aclosing(engine.generate(make_request(prompt, NUM_TOKENS))) as events:
                await anext(events)

        leaving = [leave_early(prompt) for prompt in PROMPTS]
        staying = [tokens_of(engine, make_request(prompt, NUM_TOKENS)) for prompt in PROMPTS]
        results = await asyncio.gather(*leaving, *staying)
    assert results[len(PROMPTS) :] == alone


async def test_requests_leave_nothing_in_memory(model_dir: Path, make_request: MakeRequest) -> None:
    kinds: list[dict[str, Any]] = [
        {},
        {"logprobs": 5},
        {"temperature": 1.0, "seed": 3, "frequency_penalty": 0.5},
        {"logit_bias": {7: 1.0}, "tenant": "acme", "cache_salt": "acme"},
    ]
    held = []
    async with running(model_dir, num_kv_blocks=80) as engine:

        async def ask(number: int) -> None:
            prompt = [number % VOCAB_SIZE, number // VOCAB_SIZE, *LONG[: number % 40]]
            request = make_request(prompt, 6, **kinds[number % len(kinds)])
            async with aclosing(engine.generate(request)) as events:
                async for _ in events:
                    if number % 7 == 0:  # who leaves early
                        break

        for first in range(0, 1500, 300):
            for number in range(first, first + 300, 6):
                await asyncio.gather(*(ask(each) for each in range(number, number + 6)))
            while (await engine.stats()).num_running:
                await asyncio.sleep(0.001)
            gc.collect()
            held.append(sys.getallocatedblocks())
    assert held[-1] - held[0] < 600  # of 1,200 requests


async def test_seeded_draws_repeat_under_any_load(
    model_dir: Path, make_request: MakeRequest
) -> None:
    requests = [make_request(p, 20, temperature=0.8, top_p=0.9, seed=5) for p in PROMPTS]
    async with running(model_dir) as engine:
        alone = [await tokens_of(engine, request) for request in requests]
    async with running(
        model_dir, num_kv_blocks=50, max_num_batched_tokens=16, max_model_len=110
    ) as engine:
        crowded = await asyncio.gather(*(tokens_of(engine, request) for request in requests))
    assert crowded == alone
