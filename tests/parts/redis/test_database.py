"""The Redis as a database: what its client library does with cancelled tasks."""

from __future__ import annotations

import asyncio

import pytest

from parts.redis.limits import limits_in
from service.store.base import ScriptDatabase
from tests.service.conftest import open_redis

NUM_STEPS = 200  # of the event loop, more than one call takes


async def test_a_call_that_is_cancelled_at_any_step_ends_cancelled(redis_url: str) -> None:
    """Else a loop of calls goes on after its end: a worker that was stopped claims jobs."""
    database = open_redis(redis_url)
    places = limits_in(redis_url).places

    async def call() -> None:
        await database.call("return 1", (), ())

    async def take() -> None:
        await places.take("ann", 1, "lease")

    for work in (call, take):
        await work()  # connects
        for num_steps in range(NUM_STEPS):
            task = asyncio.create_task(work())
            for _ in range(num_steps):
                await asyncio.sleep(0)
            if not task.cancel():
                break
            await asyncio.wait([task])
            assert task.cancelled(), f"cancelled after {num_steps} steps, it went on"
    await places.close()
    await database.close()


async def call_until(database: ScriptDatabase, seconds: float) -> None:
    async with asyncio.timeout(seconds):
        for _ in range(5000):
            await database.call("return 1", (), ())


async def test_a_timeout_ends_a_loop_of_calls(redis_url: str) -> None:
    """It is one cancellation, which must not be lost."""
    database = open_redis(redis_url)
    for microseconds in range(0, 2000, 20):
        with pytest.raises(TimeoutError):
            await call_until(database, microseconds / 1e6)
    await database.close()
