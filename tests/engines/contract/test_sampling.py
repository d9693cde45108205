"""What any engine that runs a model does with each wish; an adapter that passes it is right."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from engines.base import Engine, EngineRequest
from engines.errors import QueueFull
from engines.spec import EngineSpec
from tests.engines.contract.conftest import ON_GPU, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

MODELS = {
    "native": {},
    "native-overlapped": {"overlap_steps": True},
    "native-process": {},
    **{mode: {} for mode in ON_GPU},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=MODELS)
async def model(
    request: pytest.FixtureRequest, spec_of: Callable[[str], EngineSpec]
) -> AsyncIterator[Engine]:
    """An engine that runs a model rather than a script."""
    spec = spec_of(request.param)
    spec = replace(spec, options={**spec.options, **MODELS[request.param]})
    async with running(spec, request.param) as engine:
        yield engine


async def ids(engine: Engine, request: EngineRequest) -> list[int]:
    async with asyncio.timeout(30):
        return [token async for event in engine.generate(request) for token in event.token_ids]


async def test_a_bias_forces_and_bans(model: Engine, make_request: Any) -> None:
    free = await ids(model, make_request())
    assert await ids(model, make_request(logit_bias={77: 100.0})) == [77] * 8
    banned = await ids(model, make_request(logit_bias=dict.fromkeys(free, -100.0)))
    assert not {*free} & {*banned}


@pytest.mark.parametrize("penalty", ["presence_penalty", "frequency_penalty"])
async def test_penalties_bring_other_tokens(model: Engine, make_request: Any, penalty: str) -> None:
    among = dict.fromkeys(range(200, 240), 100.0)
    free, varied, repeated = [
        await ids(model, make_request(logit_bias=among, max_tokens=40, **{penalty: strength}))
        for strength in (0.0, 2.0, -2.0)
    ]
    assert len({*repeated}) < len({*free}) < len({*varied})


async def test_a_repetition_penalty_counts_the_prompt_too(model: Engine, make_request: Any) -> None:
    prompt = tuple(range(100, 110))
    answer = await ids(model, make_request(prompt=prompt, max_tokens=40, repetition_penalty=100.0))
    assert len({*answer, *prompt}) == 50


@pytest.mark.parametrize("wish", [{"top_k": 1}, {"min_p": 1.0}, {"top_p": 1e-6}])
async def test_filters_leave_the_likeliest(
    model: Engine, make_request: Any, wish: dict[str, Any]
) -> None:
    greedy = await ids(model, make_request())
    assert await ids(model, make_request(temperature=2.0, seed=3, **wish)) == greedy


async def test_a_seed_repeats_whatever_else_runs(model: Engine, make_request: Any) -> None:
    def draw(seed: int) -> Any:
        return ids(model, make_request(temperature=2.0, seed=seed, max_tokens=12))

    alone = [await draw(seed) for seed in range(6)]
    assert len({tuple(answer) for answer in alone}) == 6
    assert await asyncio.gather(*(draw(seed) for seed in range(6))) == alone


async def test_prefixes_are_shared_under_one_salt_only(model: Engine, make_request: Any) -> None:
    async def cached(salt: str | None) -> int:
        request = make_request(prompt=tuple(range(40, 140)), cache_salt=salt)
        return max([event.num_cached_tokens async for event in model.generate(request)])

    assert await cached("a") == 0
    assert await cached("a") > 0
    assert await cached("b") == 0
    assert await cached(None) == 0


async def test_the_urgent_go_first_and_who_does_not_fit_is_told(
    spec_of: Callable[[str], EngineSpec], make_request: Any
) -> None:
    spec = spec_of("native")
    spec = replace(
        spec,
        limits={**spec.limits, "max_num_seqs": 1},
        options={**spec.options, "max_num_waiting": 2},
    )
    order: list[int] = []

    async def run(engine: Engine, priority: int) -> None:
        request = make_request(max_tokens=20)
        await ids(engine, replace(request, priority=priority))
        order.append(priority)

    async with running(spec, "native") as engine:
        first = asyncio.create_task(ids(engine, make_request(max_tokens=200)))
        async with asyncio.timeout(30):
            while (await engine.stats()).num_running == 0:
                await asyncio.sleep(0.001)
        waiting = [asyncio.create_task(run(engine, priority)) for priority in (1, -1)]
        async with asyncio.timeout(30):
            while (await engine.stats()).num_waiting < 2:
                await asyncio.sleep(0.001)
        with pytest.raises(QueueFull):
            await ids(engine, make_request())
        await asyncio.gather(first, *waiting)
    assert order == [-1, 1]


async def test_several_tokens_an_event_are_one_answer(
    spec_of: Callable[[str], EngineSpec], make_request: Any
) -> None:
    spec = spec_of("fake")
    options = {**spec.options, "tokens_per_step": 3}
    async with running(replace(spec, options=options), "fake-process") as engine:
        request = make_request(max_tokens=8, logprobs=1)
        events = [event async for event in engine.generate(request)]
    assert [token for event in events for token in event.token_ids] == [*range(11, 19)]
    assert max(len(event.token_ids) for event in events) > 1
    assert all(len(event.logprobs or ()) == len(event.token_ids) for event in events)
    assert [event.finish_reason for event in events[:-1]] == [None] * (len(events) - 1)
    assert events[-1].finish_reason is not None
