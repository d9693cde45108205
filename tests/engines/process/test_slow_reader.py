"""What waits for a reader is bounded, and comes in pieces that nobody else has to wait for."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from engines.base import EngineRequest, FinishReason, SamplingParams, TokenEvent, TokenLogprob
from engines.errors import RequestFailed
from engines.process.stream import MOST_AT_ONCE, MOST_WAITING, Stream


def event(number: int, num_rivals: int | None, reason: FinishReason | None = None) -> TokenEvent:
    if num_rivals is None:
        return TokenEvent((number,), None, reason)
    rivals = tuple((rival, -1.0) for rival in range(num_rivals))
    return TokenEvent((number,), (TokenLogprob(number, -0.5, rivals),), reason)


@pytest.mark.parametrize(("num_rivals", "most"), [(None, MOST_AT_ONCE), (20, MOST_AT_ONCE // 21)])
async def test_a_reader_that_is_behind_gets_all_of_it_piece_by_piece(
    num_rivals: int | None, most: int
) -> None:
    stream = Stream()
    for number in range(5000):
        stream.push(event(number, num_rivals, FinishReason.STOP if number == 4999 else None))
    taken: list[int] = []
    while len(taken) < 5000:
        piece = await stream.next()
        assert 0 < len(piece.token_ids) <= most
        assert (piece.finish_reason is None) == (len(taken) + len(piece.token_ids) < 5000)
        taken += piece.token_ids
    assert taken == list(range(5000))
    assert not stream.is_overrun


async def test_one_event_that_is_larger_than_a_piece_comes_whole() -> None:
    stream = Stream()
    stream.push(TokenEvent(tuple(range(MOST_AT_ONCE + 5))))
    stream.push(event(1, None))
    assert len((await stream.next()).token_ids) == MOST_AT_ONCE + 5
    assert (await stream.next()).token_ids == (1,)


async def test_a_reader_that_stops_has_its_request_aborted(
    start_engine: Any, start_client: Any
) -> None:
    engine = await start_engine(script=[11], step_s=0.001, tokens_per_step=4096)
    client = await start_client(engine)
    request = EngineRequest("slow", (1,), SamplingParams(130_000))
    num_tokens = 0

    async def read() -> None:
        nonlocal num_tokens
        async for each in events:
            num_tokens += len(each.token_ids)

    async with aclosing(client.generate(request)) as events:
        await anext(events)
        async with asyncio.timeout(60):
            while (await client.stats()).num_running:
                await asyncio.sleep(0.01)
        with pytest.raises(RequestFailed, match="too far behind"):
            await asyncio.wait_for(read(), 60)
    assert MOST_WAITING < num_tokens < MOST_WAITING + 4 * 4096
