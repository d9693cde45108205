"""A service that counts, around a scripted engine, in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from auth.base import Credentials, Principal, PrincipalLimits, Scope
from parts.usage.counting.ledger import Ledger
from parts.usage.serving import counted
from parts.usage.settings import UsageSettings
from service.jobs.worker import jobs_on
from service.run.server import create_app
from service.runtime import Adapters, Runtime
from service.store.sqlite import Database, SqliteDatabase
from tests.e2e.conftest import start_server
from tests.service.conftest import (
    NOON,
    chat_body,
    harmony_ids,
    make_runtime,
    open_redis,
    openai_sdk,
    redis_url,
)

__all__ = ["chat_body", "harmony_ids", "make_runtime", "openai_sdk", "redis_url", "start_server"]

HELLO = "<|channel|>final<|message|>Hello!<|return|>"
NUM_HELLO = 6

Open = Callable[..., Awaitable[httpx2.AsyncClient]]


class Clock:
    """The wall clock, which a test sets."""

    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> float:
        return self.now


class Callers:
    """A credential is `tenant.key`, with scopes and limits by the key."""

    def __init__(
        self, limits: dict[str, PrincipalLimits], accounts: dict[str, str] | None = None
    ) -> None:
        self.limits = limits
        self._accounts = accounts or {}

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        tenant, _, key = credentials.value.partition(".")
        scopes = {Scope.MODELS, Scope.INFERENCE, Scope.BATCH}
        return Principal(
            f"key-{key}",
            tenant_id=tenant,
            scopes=frozenset(Scope if key == "root" else scopes),
            limits=self.limits.get(key),
            account=self._accounts.get(key, ""),
        )


def as_(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name}"}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=pytest.mark.heavy)])
async def open_database(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[Callable[[], Database]]:
    """The database as each process opens it for itself."""
    opened: list[Database] = []
    url = request.getfixturevalue("redis_url") if request.param == "redis" else None
    if url:
        from redis.asyncio import Redis

        redis = Redis.from_url(url)
        await redis.flushall()
        await redis.aclose()

    def open_another() -> Database:
        path = tmp_path / "responses.sqlite"
        opened.append(open_redis(url) if url else SqliteDatabase(path))
        return opened[-1]

    yield open_another
    for database in opened:
        await database.close()


@pytest.fixture
async def open_service(
    make_runtime: Any, open_database: Callable[[], Database], clock: Clock
) -> AsyncIterator[Open]:
    """A client of a new process's worth of service, on the common database."""
    opened: list[tuple[httpx2.AsyncClient, Runtime]] = []

    async def start(
        script: str = HELLO,
        *,
        limits: dict[str, PrincipalLimits] | None = None,
        accounts: dict[str, str] | None = None,
        tenants: str = "",
        counts_all: bool = True,
        parts: tuple[object, ...] = (),
        adapters: Adapters | None = None,
        **options: Any,
    ) -> httpx2.AsyncClient:
        options["authenticator"] = Callers({} if limits is None else limits, accounts)
        database = open_database()
        runtime = make_runtime(script, **options)
        runtime = replace(
            runtime, database=database, jobs=jobs_on(database), clock=clock, parts=parts,
            adapters=adapters,
        )  # fmt: skip
        budgets = UsageSettings(tenant_budgets=tenants).budgets_of_tenants
        runtime = counted(runtime, budgets, counts_all=counts_all)
        await runtime.engine.start()
        transport = httpx2.ASGITransport(create_app(runtime), raise_app_exceptions=False)
        client = httpx2.AsyncClient(transport=transport, base_url="http://service")
        opened.append((client, runtime))
        client.runtime = runtime  # type: ignore[attr-defined]
        return client

    yield start
    for client, runtime in opened:
        await client.aclose()
        await runtime.jobs.close(5)
        await runtime.gate.close()
        await runtime.engine.stop()


def ledger_of(client: httpx2.AsyncClient) -> Ledger:
    ledger: Ledger = client.runtime.of(Ledger)  # type: ignore[attr-defined]
    return ledger
