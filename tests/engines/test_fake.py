"""The scripted engine does what its options say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from engines.base import EngineRequest, TokenEvent
from engines.errors import EngineStartError, QueueFull, RequestFailed
from tests.fake.engine import FakeEngine
from tests.fake.sequence import FakeOptions

MakeEngine = Callable[..., Awaitable[FakeEngine]]


@pytest.fixture
async def make_engine(no_leaks: None) -> AsyncIterator[MakeEngine]:
    engines: list[FakeEngine] = []

    async def make(**options: Any) -> FakeEngine:
        engine = FakeEngine.from_json({"script": [11, 12, 13, 14, 15]} | options)
        engines.append(engine)
        await engine.start()
        return engine

    yield make
    for engine in engines:
        await engine.stop()


async def collect(engine: FakeEngine, request: EngineRequest) -> list[TokenEvent]:
    return [event async for event in engine.generate(request)]


@pytest.mark.parametrize(
    ("tokens_per_step", "steps"),
    [
        (1, [(11,), (12,), (13,), (14,), (15,), (11,), (12,)]),
        (3, [(11, 12, 13), (14, 15, 11), (12,)]),
        (8, [(11, 12, 13, 14, 15, 11, 12)]),
    ],
)
async def test_tokens_per_step_and_a_script_that_starts_again(
    make_engine: MakeEngine, make_request: Any, tokens_per_step: int, steps: list[tuple[int, ...]]
) -> None:
    engine = await make_engine(tokens_per_step=tokens_per_step)
    assert [event.token_ids for event in await collect(engine, make_request(7))] == steps


async def test_requests_take_scripts_in_turn(make_engine: MakeEngine, make_request: Any) -> None:
    engine = await make_engine(script=[], scripts=[[1], [2]])
    answers = [(await collect(engine, make_request(1)))[0].token_ids for _ in range(3)]
    assert answers == [(1,), (2,), (1,)]


async def test_a_script_may_be_a_function_of_the_request(make_request: Any) -> None:
    engine = FakeEngine(FakeOptions(), script=lambda request: request.prompt_token_ids)
    await engine.start()
    tokens = [event.token_ids for event in await collect(engine, make_request(3))]
    assert tokens == [(1,), (2,), (3,)]
    await engine.stop()


async def test_a_script_may_be_a_function_in_a_file(tmp_path: Path, make_request: Any) -> None:
    path = tmp_path / "model.py"
    path.write_text("def write(prompt_token_ids):\n    return prompt_token_ids[::-1]\n")
    engine = FakeEngine.from_json({"script_file": str(path)})
    await engine.start()
    tokens = [event.token_ids for event in await collect(engine, make_request(3))]
    assert tokens == [(3,), (2,), (1,)]
    await engine.stop()


@pytest.mark.parametrize(("tokens_per_step", "fail_at"), [(1, 0), (1, 4), (3, 4)])
async def test_failure_after_a_number_of_tokens(
    make_engine: MakeEngine, make_request: Any, tokens_per_step: int, fail_at: int
) -> None:
    engine = await make_engine(tokens_per_step=tokens_per_step, fail_at=fail_at)
    num_tokens = 0
    with pytest.raises(RequestFailed, match=f"after {fail_at} tokens"):  # noqa: PT012
        async for event in engine.generate(make_request()):
            num_tokens += len(event.token_ids)
    assert num_tokens == fail_at
    assert (await engine.stats()).num_running == 0


async def test_all_streams_advance_together(make_engine: MakeEngine, make_request: Any) -> None:
    engine = await make_engine(step_s=0.001)
    order: list[str] = []

    async def read(name: str) -> None:
        async for _ in engine.generate(make_request(4)):
            order.append(name)

    await asyncio.gather(*(read(name) for name in "abc"))
    assert order == list("abcabcabcabc")


async def test_the_pace_is_kept(make_engine: MakeEngine, make_request: Any) -> None:
    engine = await make_engine(step_s=0.01)
    started_s = asyncio.get_running_loop().time()
    await collect(engine, make_request(11))
    assert asyncio.get_running_loop().time() - started_s >= 0.099


async def test_requests_wait_for_a_place_and_a_full_queue_refuses(
    make_engine: MakeEngine, make_request: Any
) -> None:
    engine = await make_engine(step_s=0.01, max_num_seqs=1, max_num_waiting=1)
    first = engine.generate(make_request())
    await anext(first)
    second = asyncio.create_task(collect(engine, make_request(1)))
    await asyncio.sleep(0)
    stats = await engine.stats()
    assert (stats.num_running, stats.num_waiting) == (1, 1)
    with pytest.raises(QueueFull, match="1 requests are waiting"):
        await collect(engine, make_request())
    await first.aclose()
    assert len(await second) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"script": [1], "stepp_s": 1}, "unknown field `stepp_s`.*known options: script,"),
        ({"script": "no"}, r"Expected `array`, got `str` - at `\$.script`"),
        ({"script": [1], "scripts": [[2]]}, "give one of 'script', 'scripts' and 'script_file'"),
        ({}, "'script' .* is required"),
        ({"scripts": [[1], []]}, "'script' .* is required"),
        ({"script": [1], "tokens_per_step": 0}, "tokens_per_step"),
        ({"script": [1], "step_s": -1}, "step_s"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(EngineStartError, match=message):
        FakeEngine.from_json(options)
