"""What any engine that runs a model does with each wish; an adapter that passes it is right."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engines.base import Engine, EngineRequest, FinishReason
from engines.fields import RepetitionDetection
from tests.engines.contract.contenders import Checkpoint, running

pytestmark = pytest.mark.asyncio(loop_scope="package")


async def ids(engine: Engine, request: EngineRequest) -> list[int]:
    async with asyncio.timeout(60):
        return [token async for event in engine.generate(request) for token in event.token_ids]


async def test_a_bias_forces_and_bans(model: Engine, make_request: Any, needs: Any) -> None:
    needs(model, "logit_bias")
    free = await ids(model, make_request())
    assert await ids(model, make_request(logit_bias={77: 100.0})) == [77] * 8
    banned = await ids(model, make_request(logit_bias=dict.fromkeys(free, -100.0)))
    assert not {*free} & {*banned}


async def test_an_answer_that_repeats_itself_ends(
    model: Engine, make_request: Any, needs: Any
) -> None:
    needs(model, "logit_bias", "repetition_detection")
    same: dict[str, Any] = {"logit_bias": {77: 100.0}}
    for asked, num in ((RepetitionDetection(1, 3), 3), (RepetitionDetection(3, 2, 3), 6)):
        request = make_request(**same, repetition_detection=asked)
        assert await ids(model, request) == [77] * num
    events = [event async for event in model.generate(request)]
    assert events[-1].finish_reason is FinishReason.LENGTH
    late = make_request(**same, repetition_detection=asked, min_tokens=7)
    assert await ids(model, late) == [77] * 7


@pytest.mark.parametrize("penalty", ["presence_penalty", "frequency_penalty"])
async def test_penalties_bring_other_tokens(
    model: Engine, make_request: Any, needs: Any, penalty: str
) -> None:
    needs(model, "logit_bias", penalty)
    among = dict.fromkeys(range(200, 240), 100.0)
    free, varied, repeated = [
        await ids(model, make_request(logit_bias=among, max_tokens=40, **{penalty: strength}))
        for strength in (0.0, 2.0, -2.0)
    ]
    assert len({*repeated}) < len({*free}) < len({*varied})


async def test_a_repetition_penalty_counts_the_prompt_too(
    model: Engine, make_request: Any, needs: Any
) -> None:
    needs(model, "repetition_penalty")
    prompt = tuple(range(100, 110))
    answer = await ids(model, make_request(prompt=prompt, max_tokens=40, repetition_penalty=100.0))
    assert len({*answer, *prompt}) == 50


@pytest.mark.parametrize("wish", [{"top_k": 1}, {"min_p": 1.0}, {"top_p": 1e-6}])
async def test_filters_leave_the_likeliest(
    model: Engine, make_request: Any, needs: Any, wish: dict[str, Any]
) -> None:
    needs(model, "seed", *(name for name in wish if name != "top_p"))
    greedy = await ids(model, make_request())
    assert await ids(model, make_request(temperature=2.0, seed=3, **wish)) == greedy


@pytest.mark.usefixtures("alike_in_any_batch")
async def test_a_seed_repeats_whatever_else_runs(
    model: Engine, make_request: Any, needs: Any
) -> None:
    needs(model, "seed")

    def draw(seed: int) -> Any:
        return ids(model, make_request(temperature=2.0, seed=seed, max_tokens=12))

    alone = [await draw(seed) for seed in range(6)]
    assert len({tuple(answer) for answer in alone}) == 6
    assert await asyncio.gather(*(draw(seed) for seed in range(6))) == alone


async def test_prefixes_are_shared_under_one_salt_only(
    model: Engine, make_request: Any, needs: Any
) -> None:
    needs(model, "cache_salt")

    async def cached(salt: str | None) -> int:
        request = make_request(prompt=tuple(range(40, 140)), cache_salt=salt)
        return max([event.num_cached_tokens async for event in model.generate(request)])

    assert await cached("a") == 0
    assert await cached("a") > 0
    assert await cached("b") == 0
    assert await cached(None) == 0


async def test_several_tokens_an_event_are_one_answer(
    checkpoint: Checkpoint, make_request: Any
) -> None:
    async with running("fake-process", checkpoint, tokens_per_step=3) as started:
        request = make_request(max_tokens=8, logprobs=1)
        events = [event async for event in started.engine.generate(request)]
    assert [token for event in events for token in event.token_ids] == [*range(11, 19)]
    assert max(len(event.token_ids) for event in events) > 1
    assert all(len(event.logprobs or ()) == len(event.token_ids) for event in events)
    assert [event.finish_reason for event in events[:-1]] == [None] * (len(events) - 1)
    assert events[-1].finish_reason is not None
