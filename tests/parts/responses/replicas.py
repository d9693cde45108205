"""Processes of one service on a common database, in one process here; on both stores."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from service.jobs.worker import jobs_on
from service.run.server import create_app
from service.runtime import Runtime
from service.store.sqlite import Database, SqliteDatabase
from tests.fake.engine import FakeEngine
from tests.fake.sequence import FakeOptions
from tests.service.conftest import open_redis

Fixture = Callable[..., Any]


OpenDatabase = Callable[[], Database]


PATH = "/v1/responses"


ENDLESS = (200005, 17196, 200008, 24912, 220)  # a final message without an end


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=pytest.mark.heavy)])
async def open_database(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[OpenDatabase]:
    """The database as each replica opens it for itself."""
    opened: list[Database] = []
    url = request.getfixturevalue("redis_url") if request.param == "redis" else None
    if url:  # ids are counted from 1 in each test
        await flush(url)

    def open_another() -> Database:
        path = tmp_path / "responses.sqlite"
        opened.append(open_redis(url) if url else SqliteDatabase(path))
        return opened[-1]

    yield open_another
    for database in opened:
        await database.close()


async def flush(url: str) -> None:
    from redis.asyncio import Redis

    redis = Redis.from_url(url)
    await redis.flushall()
    await redis.aclose()


def on(runtime: Runtime, database: Database) -> Runtime:
    """The runtime with its own connection to a database."""
    return replace(runtime, database=database, jobs=jobs_on(database))


@pytest.fixture
async def open_replica(
    make_runtime: Fixture, open_database: OpenDatabase
) -> AsyncIterator[Callable[..., Awaitable[Runtime]]]:
    """One process's worth of service on the common database."""
    runtimes: list[Runtime] = []

    async def start(script: Sequence[int] = ENDLESS, **options: Any) -> Runtime:
        engine = FakeEngine(FakeOptions(script=tuple(script), step_s=0.002, **options))
        await engine.start()
        runtimes.append(on(make_runtime(engine=engine), open_database()))
        create_app(runtimes[-1])
        return runtimes[-1]

    yield start
    for runtime in runtimes:
        await runtime.jobs.close(5)
        await runtime.engine.stop()


@pytest.fixture
async def replicas(open_replica: Fixture) -> tuple[Runtime, Runtime]:
    """Two of them; both models never stop by themselves."""
    return await open_replica(), await open_replica()


def client_of(runtime: Runtime) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(
        transport=httpx2.ASGITransport(create_app(runtime)), base_url="http://s"
    )


async def written(client: httpx2.AsyncClient, id: str) -> dict[str, Any]:
    """The response once it has some text."""
    async with asyncio.timeout(60):
        while not (seen := (await client.get(f"{PATH}/{id}")).json())["output"]:
            await asyncio.sleep(0.01)
    result: dict[str, Any] = seen
    return result


async def completed(client: httpx2.AsyncClient, id: str) -> dict[str, Any]:
    """The response once it is complete."""
    async with asyncio.timeout(60):
        while (seen := (await client.get(f"{PATH}/{id}")).json())["status"] != "completed":
            assert seen["status"] in ("queued", "in_progress"), seen
            await asyncio.sleep(0.01)
    result: dict[str, Any] = seen
    return result
