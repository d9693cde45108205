"""What any engine answers to any request."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engines.base import Engine, EngineRequest, FinishReason, TokenEvent
from engines.errors import InvalidRequest, PromptTooLong
from engines.factory import about
from tests.engines.contract.contenders import Checkpoint, Started

pytestmark = pytest.mark.asyncio(loop_scope="package")

NOWHERE = Checkpoint(Path(), Path())


async def collect(engine: Engine, request: EngineRequest) -> list[TokenEvent]:
    async with asyncio.timeout(60):
        return [event async for event in engine.generate(request)]


def ids(events: list[TokenEvent]) -> tuple[int, ...]:
    return tuple(token for event in events for token in event.token_ids)


async def test_info_is_what_was_asked_for(engine: Engine, started: Started) -> None:
    contender = started.contender
    name = "dynamo" if contender.is_front else contender.spec(NOWHERE).engine
    assert engine.info.engine == name.removeprefix("tests.")
    assert engine.info.version != ""
    assert (engine.info.max_model_len, engine.info.vocab_size) == (256, 512)
    assert engine.info.max_num_seqs == 8
    if started.contender.is_model:  # docs/engines.md is made from it
        can_do = replace(engine.info.capabilities, max_drafts=0)
        assert can_do == about(engine.info.engine).capabilities()
    await engine.check_health()


async def test_length_finish_after_exactly_max_tokens(engine: Engine, make_request: Any) -> None:
    events = await collect(engine, make_request(max_tokens=20))
    assert len(ids(events)) == 20
    assert [event.finish_reason for event in events[:-1]] == [None] * (len(events) - 1)
    assert events[-1].finish_reason is FinishReason.LENGTH
    assert all(event.token_ids and event.logprobs is None for event in events)


async def test_a_stop_id_ends_the_answer_and_is_its_last_token(
    engine: Engine, make_request: Any
) -> None:
    free = ids(await collect(engine, make_request(max_tokens=20)))
    stop = free[7]
    events = await collect(engine, make_request(max_tokens=20, stop=(stop, 1)))
    assert ids(events) == free[: free.index(stop) + 1]
    assert [event.finish_reason for event in events if event.finish_reason] == [FinishReason.STOP]


async def test_no_stop_id_comes_before_min_tokens(
    engine: Engine, make_request: Any, needs: Any
) -> None:
    needs(engine, "min_tokens")
    free = ids(await collect(engine, make_request(max_tokens=20)))
    stops = tuple({free[3], free[7]})
    early = ids(await collect(engine, make_request(max_tokens=40, stop=stops)))
    assert len(early) == 1 + min(free.index(stop) for stop in stops)
    events = await collect(engine, make_request(max_tokens=40, stop=stops, min_tokens=12))
    assert len(ids(events)) >= 12
    assert not {*stops} & {*ids(events)[:12]}
    is_stopped = events[-1].finish_reason is FinishReason.STOP
    assert is_stopped == (ids(events)[-1] in stops)


async def test_the_context_length_ends_an_answer_too(engine: Engine, make_request: Any) -> None:
    events = await collect(engine, make_request(tuple(range(2, 242)), max_tokens=100))
    assert 15 <= len(ids(events)) <= 17  # whether the last token's place counts is the engine's
    assert events[-1].finish_reason is FinishReason.LENGTH


async def test_a_prompt_that_does_not_fit(
    engine: Engine, make_request: Any, until_idle: Any
) -> None:
    with pytest.raises(PromptTooLong, match="256"):
        await collect(engine, make_request(tuple(range(2, 259))))
    await until_idle(engine)
    assert await collect(engine, make_request())


@pytest.mark.parametrize(
    "change", [{"prompt": ()}, {"max_tokens": 0}, {"prompt": (3, 512)}, {"prompt": (-1,)}]
)
async def test_requests_that_can_never_be_served(
    engine: Engine, make_request: Any, change: dict[str, Any]
) -> None:
    with pytest.raises(InvalidRequest):
        await collect(engine, make_request(**change))


async def test_closing_the_iterator_frees_everything(
    engine: Engine, make_request: Any, until_idle: Any
) -> None:
    was_running = False
    async with asyncio.timeout(60):
        while not was_running:  # on a busy machine the engine may end it before it is asked
            async with aclosing(engine.generate(make_request(max_tokens=200))) as events:
                await anext(events)
                was_running = (await engine.stats()).num_running == 1
    await until_idle(engine)


async def test_cancelling_the_reader_frees_everything(
    engine: Engine, make_request: Any, until_idle: Any
) -> None:
    was_running = False
    async with asyncio.timeout(60):
        while not was_running:
            readers = [
                asyncio.create_task(collect(engine, make_request((7, number), max_tokens=200)))
                for number in range(2, 14)
            ]
            while not was_running and not all(reader.done() for reader in readers):
                was_running = (await engine.stats()).num_running > 0
                await asyncio.sleep(0)
            for reader in readers:
                reader.cancel()
            await asyncio.wait(readers)
    await until_idle(engine)


@pytest.mark.usefixtures("alike_in_any_batch")
async def test_concurrent_streams_answer_as_they_would_alone(
    engine: Engine, make_request: Any, until_idle: Any
) -> None:
    requests = [make_request((5, 6, number), max_tokens=10) for number in range(20, 32)]
    alone = [ids(await collect(engine, request)) for request in requests]
    together = await asyncio.gather(*(collect(engine, request) for request in requests))
    assert [ids(events) for events in together] == alone
    await until_idle(engine)


async def test_the_same_seed_repeats_the_same_tokens(
    engine: Engine, make_request: Any, needs: Any
) -> None:
    needs(engine, "seed")
    request = make_request(max_tokens=20, temperature=1.0, seed=7)
    first, second = [ids(await collect(engine, request)) for _ in range(2)]
    assert first == second


@pytest.mark.parametrize("num_top", [0, 1, 3])
async def test_logprobs_come_one_per_token_best_first(
    engine: Engine, make_request: Any, num_top: int
) -> None:
    for event in await collect(engine, make_request(logprobs=num_top)):
        assert event.logprobs is not None
        assert tuple(entry.token_id for entry in event.logprobs) == event.token_ids
        for entry in event.logprobs:
            values = [logprob for _, logprob in entry.top]
            assert len(values) == num_top
            assert values == sorted(values, reverse=True)
            assert entry.logprob <= 0.0
            if entry.top:  # greedy: the chosen token is the likeliest
                assert entry.top[0] == pytest.approx((entry.token_id, entry.logprob))


async def test_a_repeated_prompt_counts_its_cached_tokens(
    engine: Engine, make_request: Any
) -> None:
    prompt = tuple(range(100, 200))
    before = await engine.stats()
    first = await collect(engine, make_request(prompt))
    second = await collect(engine, make_request(prompt))
    salted = await collect(engine, make_request(prompt, cache_salt="other"))
    after = await engine.stats()
    assert {event.num_cached_tokens for event in first} == {0}
    assert {event.num_cached_tokens for event in second} == {96}
    assert {event.num_cached_tokens for event in salted} == {0}
    assert ids(first) == ids(second) == ids(salted)
    assert after.prefix_cache_hits - before.prefix_cache_hits == 96
    assert after.prefix_cache_queries - before.prefix_cache_queries >= 300 - 3


async def test_counters_add_up(engine: Engine, make_request: Any) -> None:
    before = await engine.stats()
    await asyncio.gather(*(collect(engine, make_request((9, 9, n))) for n in range(5)))
    after = await engine.stats()
    assert after.prompt_tokens - before.prompt_tokens == 15
    assert after.generated_tokens - before.generated_tokens == 40
    assert after.num_kv_blocks == before.num_kv_blocks > 0
    assert after.kv_block_size in (16, 32)


async def test_each_event_says_how_long_the_request_waited(
    engine: Engine, make_request: Any
) -> None:
    started_s = time.monotonic()
    # Eight run at a time: the others wait for a place.
    answers = await asyncio.gather(*(collect(engine, make_request((8, n))) for n in range(12)))
    waits_s = sorted({event.queued_s for events in answers for event in events})
    assert len(waits_s) == len(answers)  # the same on every event of a request
    assert 0 <= waits_s[0] < waits_s[-1] < time.monotonic() - started_s
