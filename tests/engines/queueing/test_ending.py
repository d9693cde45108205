"""How requests end in the queue: closed, failed, drained and stopped."""

from __future__ import annotations

import asyncio

import pytest

from engines.errors import EngineDead, EngineDraining, RequestFailed
from tests.engines.queueing.recorder import Recorder, engine_of, opener, request


async def test_closing_aborts_what_runs_and_nothing_is_heard_of_it() -> None:
    runner = Recorder(max_num_seqs=1)
    engine = await engine_of(runner)
    open_, heard = opener(engine)
    entry = await open_(request("a"))
    await open_(request("b"))
    engine.close(entry)
    engine.close(entry)
    assert (runner.aborted, runner.begun) == (["a"], ["a", "b"])
    runner.give("a")
    assert heard == []


async def test_a_request_that_cannot_begin_fails_alone() -> None:
    runner = Recorder()
    open_, heard = opener(await engine_of(runner))
    runner.error = ValueError("a bug")
    await open_(request("a"))
    [error] = heard
    assert isinstance(error, RequestFailed)
    assert str(error) == "ValueError: a bug"
    runner.error = None
    await open_(request("b"))
    runner.give("b")
    assert len(heard) == 2


async def test_drain_waits_for_those_that_wait_and_those_that_prepare() -> None:
    runner = Recorder(max_num_seqs=1)
    engine = await engine_of(runner)
    open_, _ = opener(engine)
    await open_(request("a"))
    await open_(request("b"))
    runner.may_prepare.clear()
    preparing = asyncio.create_task(open_(request("c")))
    await asyncio.sleep(0)
    draining = asyncio.create_task(engine.drain())
    await asyncio.sleep(0)
    with pytest.raises(EngineDraining):
        await open_(request("d"))
    runner.give("a", is_last=True)
    runner.give("b", is_last=True)
    await asyncio.sleep(0)
    assert not draining.done()
    runner.may_prepare.set()
    await preparing
    await asyncio.sleep(0)
    assert not draining.done()
    runner.give("c", is_last=True)
    async with asyncio.timeout(60):
        await draining


async def test_stop_ends_what_waits_and_what_prepares() -> None:
    runner = Recorder(max_num_seqs=1)
    engine = await engine_of(runner)
    open_, heard = opener(engine)
    await open_(request("a"))
    await open_(request("b"))
    runner.may_prepare.clear()
    preparing = asyncio.create_task(open_(request("c")))
    await asyncio.sleep(0)
    await engine.stop()
    assert [type(outcome) for outcome in heard] == [EngineDead]
    runner.may_prepare.set()
    with pytest.raises(EngineDead):
        await preparing
    assert runner.begun == ["a"]
