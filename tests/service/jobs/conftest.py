"""The stores of jobs, each on a clock that the test moves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from service.jobs.base import JobStore
from service.jobs.redis import RedisJobs
from service.jobs.sqlite import SqliteJobs
from service.store.sqlite import SqliteDatabase
from tests.service.conftest import open_redis

OpenJobs = Callable[[], JobStore]

_TIME = "redis.call('TIME')"


class StoreClock:
    """The clock of the store: the kernel's for SQLite, the server's for Redis."""

    def __init__(self) -> None:
        self.now_s = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s


class MovedRedis:
    """A Redis whose TIME is the test's clock; all else is the real server."""

    def __init__(self, url: str, clock: StoreClock) -> None:
        self._database = open_redis(url)
        self._now = clock
        self.lasts, self.age = self._database.lasts, self._database.age
        self.close = self._database.close

    async def call(self, script: str, keys: Sequence[str], args: Sequence[Any]) -> Any:
        # Behind the keys, so that the script is the same text each time.
        moved = script.replace(_TIME, "{tonumber(KEYS[2]), tonumber(KEYS[3])}")
        seconds = int(self._now())
        micros = round((self._now() - seconds) * 1_000_000)
        return await self._database.call(moved, (*keys, str(seconds), str(micros)), args)


@pytest.fixture
def clock() -> StoreClock:
    return StoreClock()


@pytest.fixture(params=["file", "memory", pytest.param("redis", marks=pytest.mark.heavy)])
async def open_jobs(
    request: pytest.FixtureRequest, tmp_path: Path, clock: StoreClock
) -> AsyncIterator[OpenJobs]:
    """Opens the same jobs again and again, as several processes do; memory is one store."""
    opened: list[SqliteDatabase | MovedRedis] = []
    url = request.getfixturevalue("redis_url") if request.param == "redis" else ""
    if url:
        await _flush(url)

    def open_another() -> JobStore:
        if url:
            opened.append(database := MovedRedis(url, clock))
            return RedisJobs(database)
        if request.param == "file" or not opened:
            path = tmp_path / "jobs.sqlite" if request.param == "file" else None
            opened.append(SqliteDatabase(path))
        assert isinstance(opened[-1], SqliteDatabase)
        return SqliteJobs(opened[-1], clock)

    yield open_another
    for database in opened:
        await database.close()


async def _flush(url: str) -> None:
    from redis.asyncio import Redis

    redis = Redis.from_url(url)
    await redis.flushall()
    await redis.aclose()


@pytest.fixture
def jobs(open_jobs: OpenJobs) -> JobStore:
    return open_jobs()
