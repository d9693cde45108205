"""Log-probabilities of prompts are transformers', however a prompt is cut, cached or disturbed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import torch

from engines.base import EngineRequest, SamplingParams, TokenEvent
from engines.native.config import NativeConfig
from engines.native.engine import NativeEngine
from engines.prompt_logprobs import PromptToken, packed_in, unpacked
from tests.close import assert_close

NUM_TOP = 3


@asynccontextmanager
async def running(checkpoint: Any, **options: Any) -> AsyncIterator[NativeEngine]:
    options = {"block_size": 4, "num_kv_blocks": 400, "max_num_seqs": 8} | options
    engine = NativeEngine(NativeConfig(checkpoint.path, **options))
    await engine.start()
    yield engine
    await engine.stop()


def request_of(ids: list[int], num_top: int | None = NUM_TOP, max_tokens: int = 4) -> EngineRequest:
    sampling = SamplingParams(max_tokens, temperature=0.0, prompt_logprobs=num_top)
    return EngineRequest(f"r{len(ids)}", tuple(ids), sampling)


async def read(engine: NativeEngine, request: EngineRequest) -> list[TokenEvent]:
    return [event async for event in engine.generate(request)]


def scores(events: list[TokenEvent], ids: list[int]) -> list[PromptToken]:
    first, *others = events
    assert [event.extras for event in others] == [None] * len(others)
    return [*unpacked(packed_in(first) or (), ids)]


def assert_right(found: list[PromptToken], checkpoint: Any, ids: list[int]) -> None:
    assert [token.token_id for token in found] == ids[1:]
    expected = torch.log_softmax(checkpoint.logits(ids), -1)[:-1]
    chosen = expected.gather(1, torch.tensor(ids[1:])[:, None])
    ranks = (expected > chosen).sum(1) + 1
    assert [token.rank for token in found] == ranks.tolist()
    top = expected.topk(NUM_TOP)
    assert [[id for id, _ in token.top] for token in found] == top.indices.tolist()
    for got, want in (
        ([token.logprob for token in found], chosen.squeeze(1)),
        ([[value for _, value in token.top] for token in found], top.values),
    ):
        assert_close(torch.tensor(got), want, atol=1e-3, rtol=0.0)


@pytest.mark.parametrize(
    "options",
    [
        {"max_num_batched_tokens": 512},
        {"max_num_batched_tokens": 1},
        {"max_num_batched_tokens": 7, "overlap_steps": True},
    ],
)
async def test_a_prompt_cut_anywhere_beside_others(
    make_checkpoint: Any, token_ids: Any, options: dict[str, Any]
) -> None:
    checkpoint = make_checkpoint()
    prompts = [token_ids(num) for num in (150, 2, 40)]
    async with running(checkpoint, **options) as engine:
        answers = await asyncio.gather(
            *(read(engine, request_of(prompt)) for prompt in prompts),
            read(engine, request_of(prompts[0][:90], num_top=None)),
        )
    for prompt, events in zip(prompts, answers, strict=False):
        assert_right(scores(events, prompt), checkpoint, prompt)
    assert answers[-1][0].extras is None


async def test_a_prompt_of_one_token_has_none(make_checkpoint: Any) -> None:
    async with running(make_checkpoint()) as engine:
        assert scores(await read(engine, request_of([5])), [5]) == []


async def test_a_cached_prompt_is_computed_again_and_can_be_reused(
    make_checkpoint: Any, token_ids: Any
) -> None:
    checkpoint, prompt = make_checkpoint(), token_ids(60)
    async with running(checkpoint) as engine:
        plain = await read(engine, request_of(prompt, num_top=None))
        scored = await read(engine, request_of(prompt))
        after = await read(engine, request_of(prompt, num_top=None))
    assert_right(scores(scored, prompt), checkpoint, prompt)
    assert scored[0].num_cached_tokens == 0
    assert after[0].num_cached_tokens == 56
    assert [e.token_ids for e in plain] == [e.token_ids for e in scored]


async def test_a_preemption_costs_and_repeats_nothing(make_checkpoint: Any, token_ids: Any) -> None:
    checkpoint = make_checkpoint()
    prompts = [token_ids(num) for num in (70, 33, 66, 20, 40, 50)]
    options = {"num_kv_blocks": 40, "max_num_batched_tokens": 16, "max_model_len": 110}
    for is_overlapped in (False, True):
        async with running(checkpoint, **options, overlap_steps=is_overlapped) as engine:
            requests = [request_of(prompt, max_tokens=30) for prompt in prompts]
            answers = await asyncio.gather(*(read(engine, each) for each in requests))
            assert (await engine.stats()).num_preemptions > 0
        for prompt, events in zip(prompts, answers, strict=True):
            assert_right(scores(events, prompt), checkpoint, prompt)
