"""What waits for a reader is bounded, and comes in pieces that nobody else has to wait for."""

from __future__ import annotations

import asyncio
import contextlib
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import msgspec
import pytest

from engines.base import EngineRequest, FinishReason, SamplingParams, TokenEvent, TokenLogprob
from engines.errors import Paused
from engines.fleet import Fleet
from engines.process.stream import MOST_AT_ONCE, Stream, Unread
from engines.recovery.crash_records import CrashRecords
from engines.recovery.guarded import GuardedEngine

MOST_OF_ONE = 1 << 16
ONE_EVENT = 16 * 1024  # 16 tokens with 20 rivals each take less


def event(number: int, num_rivals: int | None, reason: FinishReason | None = None) -> TokenEvent:
    if num_rivals is None:
        return TokenEvent((number,), None, reason)
    rivals = tuple((rival, -1.0) for rival in range(num_rivals))
    return TokenEvent((number,), (TokenLogprob(number, -0.5, rivals),), reason)


@pytest.mark.parametrize(("num_rivals", "most"), [(None, MOST_AT_ONCE), (20, MOST_AT_ONCE // 21)])
async def test_a_reader_that_is_behind_gets_all_of_it_piece_by_piece(
    num_rivals: int | None, most: int
) -> None:
    stream = Stream(Unread(), print, print)
    for number in range(3000):
        stream.push(event(number, num_rivals, FinishReason.STOP if number == 2999 else None))
    taken: list[int] = []
    while len(taken) < 3000:
        piece = await stream.next()
        assert 0 < len(piece.token_ids) <= most
        assert (piece.finish_reason is None) == (len(taken) + len(piece.token_ids) < 3000)
        taken += piece.token_ids
    assert taken == list(range(3000))
    assert stream.num_bytes == 0


async def test_one_event_that_is_larger_than_a_piece_comes_whole() -> None:
    stream = Stream(Unread(), print, print)
    stream.push(TokenEvent(tuple(range(MOST_AT_ONCE + 5))))
    stream.push(event(1, None))
    assert len((await stream.next()).token_ids) == MOST_AT_ONCE + 5
    assert (await stream.next()).token_ids == (1,)


@pytest.mark.parametrize("num_rivals", [None, 0, 5, 20])
async def test_what_waits_is_counted_as_no_less_than_it_takes(num_rivals: int | None) -> None:
    stream = Stream(Unread(), print, print)
    decoder, written = msgspec.msgpack.Decoder(TokenEvent), event(150_000, num_rivals)
    encoded = msgspec.msgpack.encode(written)
    stream.push(decoder.decode(encoded))
    counted = stream.num_bytes
    tracemalloc.start()
    try:
        for number in range(1000):
            if num_rivals is None:
                stream.push_token(150_000 + number)
            else:
                stream.push(decoder.decode(encoded))
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.5 * (stream.num_bytes - counted) < taken <= stream.num_bytes - counted


async def read_all(events: AsyncIterator[TokenEvent]) -> None:
    async for _ in events:
        pass


async def test_a_reader_that_stops_pauses_its_request_within_the_bound(
    start_engine: Any, start_client: Any
) -> None:
    engine = await start_engine(script=[11], step_s=0.001, tokens_per_step=16)
    unread, num_pauses = Unread(most_bytes_of_one=MOST_OF_ONE), 0

    def count() -> None:
        nonlocal num_pauses
        num_pauses += 1

    unread.on_pause = count
    client = await start_client(engine, unread=unread)
    request = EngineRequest("slow", (1,), SamplingParams(130_000, logprobs=20))
    most = 0
    async with aclosing(client.generate(request)) as events:
        await anext(events)
        async with asyncio.timeout(60):
            while (await client.stats()).num_running:
                most = max(most, unread.num_bytes)
                await asyncio.sleep(0.001)
        waiting = unread.num_bytes
        assert most <= waiting < MOST_OF_ONE + ONE_EVENT
        with pytest.raises(Paused, match="waited for a slow reader"):
            await read_all(events)
        assert unread.num_bytes == 0
    assert num_pauses == 1


async def test_an_answer_that_is_read_slowly_comes_whole_and_the_engine_waits_for_it(
    start_engine: Any, start_client: Any
) -> None:
    engine = await start_engine(step_s=0.001, tokens_per_step=16)
    unread = Unread(most_bytes_of_one=MOST_OF_ONE)
    client = await start_client(engine, unread=unread)
    guarded = GuardedEngine(Fleet([client]), CrashRecords(client.folder / "suspects", 600.0))
    request = EngineRequest("slow", (1,), SamplingParams(3000, logprobs=20))
    tokens: list[int] = []
    events = guarded.generate(request)
    async for each in events:
        assert each.logprobs is not None
        assert [logprob.token_id for logprob in each.logprobs] == list(each.token_ids)
        tokens += each.token_ids
        if len(tokens) < 1500:  # far behind, time after time
            async with asyncio.timeout(60):
                while (await client.stats()).num_running:
                    await asyncio.sleep(0.001)
            assert unread.num_bytes < MOST_OF_ONE + ONE_EVENT
    assert tokens == [11, 12, 13] * 1000


async def test_together_the_largest_backlog_is_cut_and_readers_go_on(
    start_engine: Any, start_client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    engine = await start_engine(script=[11], step_s=0.001, tokens_per_step=16)
    unread, num_cut = Unread(1 << 20), 0

    def count() -> None:
        nonlocal num_cut
        num_cut += 1

    unread.on_cut = count
    client = await start_client(engine, unread=unread)
    async with contextlib.AsyncExitStack() as stack:
        stalled = []
        for number in range(3):
            request = EngineRequest(f"stalled-{number}", (1,), SamplingParams(60_000, logprobs=20))
            events = await stack.enter_async_context(aclosing(client.generate(request)))
            await anext(events)
            stalled.append(events)
        read = EngineRequest("read", (1,), SamplingParams(60_000))
        num_read = 0
        async for each in client.generate(read):
            num_read += len(each.token_ids)
            assert unread.num_bytes <= 1 << 20
        assert num_read == 60_000
        async with asyncio.timeout(60):
            while (await client.stats()).num_running:
                await asyncio.sleep(0.01)
    assert num_cut == 3
    assert unread.num_bytes == 0
    assert "Request stalled-0 was ended: its client reads too slowly" in caplog.text


async def test_a_finished_answer_that_is_left_unread_counts_no_more(
    start_engine: Any, start_client: Any
) -> None:
    engine = await start_engine(script=[11], step_s=0.001, tokens_per_step=64)
    unread = Unread()
    client = await start_client(engine, unread=unread)
    async with aclosing(client.generate(EngineRequest("r", (1,), SamplingParams(640)))) as events:
        await anext(events)
        async with asyncio.timeout(60):
            while (await client.stats()).num_running:
                await asyncio.sleep(0.001)
        assert unread.num_bytes > 0
    assert unread.num_bytes == 0
