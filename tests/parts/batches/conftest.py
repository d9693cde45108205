"""The routes of files and batches around a scripted engine, in this process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from auth.base import Credentials, Principal
from parts.batches import run
from parts.batches.files.folder import FilesFolder
from parts.batches.store.base import StorageBounds
from service.jobs.worker import jobs_on
from service.run.server import create_app
from service.runtime import Runtime
from service.store.sqlite import Database, SqliteDatabase
from tests.service.conftest import (
    harmony_ids,
    make_runtime,
    open_redis,
    openai_sdk,
    redis_url,
)

__all__ = ["harmony_ids", "make_runtime", "openai_sdk", "redis_url"]

HELLO = "<|channel|>final<|message|>Hello!<|return|>"
ENDED = ("completed", "failed", "expired", "cancelled")
PATIENCE_S = 60

Open = Callable[..., Awaitable[httpx2.AsyncClient]]


class Callers:
    """Whoever presents a name is that tenant."""

    def __init__(self, scopes: frozenset[str]) -> None:
        self._scopes = scopes

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        name = credentials.value
        return Principal(name, tenant_id=name, scopes=self._scopes)


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=pytest.mark.heavy)])
async def open_database(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[Callable[[], Database]]:
    """The database as each replica opens it for itself."""
    opened: list[Database] = []
    url = request.getfixturevalue("redis_url") if request.param == "redis" else None
    if url:  # ids are counted from 1 in each test
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
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch tells how far it is more often, so that a test sees it before its end."""
    monkeypatch.setattr(run, "_LOOK_S", 0.05)
    monkeypatch.setattr(run, "_TOLD_S", 0.05)


@pytest.fixture
async def open_service(
    make_runtime: Any, open_database: Callable[[], Database], tmp_path: Path, brisk: None
) -> AsyncIterator[Open]:
    """A client of a new process's worth of service, on the common database and folder."""
    opened: list[tuple[httpx2.AsyncClient, Runtime]] = []

    async def start(
        script: str = HELLO,
        *,
        max_bytes: int = 1 << 30,
        scopes: frozenset[str] | None = None,
        **options: Any,
    ) -> httpx2.AsyncClient:
        if scopes is not None:
            options["authenticator"] = Callers(scopes)
        database = open_database()
        runtime = replace(
            make_runtime(script, **options),
            database=database,
            jobs=jobs_on(database),
            parts=(FilesFolder(tmp_path / "files"), StorageBounds(max_bytes)),
        )
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
        await runtime.engine.stop()


def line(custom_id: str, url: str = "/v1/chat/completions", **changes: Any) -> dict[str, Any]:
    """A request of a batch."""
    messages = [{"role": "user", "content": "Hi"}]
    body = {"model": "gpt-oss-20b", "messages": messages, "max_tokens": 40} | changes
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def jsonl(*lines: Any) -> bytes:
    texts = [each if isinstance(each, str) else json.dumps(each) for each in lines]
    return "".join(f"{text}\n" for text in texts).encode()


async def upload(client: httpx2.AsyncClient, content: bytes, **more: Any) -> httpx2.Response:
    data = {"purpose": "batch"} | more.pop("data", {})
    files = {"file": ("in.jsonl", content)}
    return await client.post("/v1/files", files=files, data=data, **more)


async def create(client: httpx2.AsyncClient, *lines: Any, **more: Any) -> dict[str, Any]:
    """A new batch of these lines."""
    headers = more.pop("headers", {})
    uploaded = await upload(client, jsonl(*lines), headers=headers)
    assert uploaded.status_code == 200, uploaded.text
    body = {
        "input_file_id": uploaded.json()["id"],
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    }
    made = await client.post("/v1/batches", json=body | more, headers=headers)
    assert made.status_code == 200, made.text
    batch: dict[str, Any] = made.json()
    return batch


async def until(client: httpx2.AsyncClient, id: str, *statuses: str, **more: Any) -> dict[str, Any]:
    """The batch once it is in one of these states."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            batch: dict[str, Any] = (await client.get(f"/v1/batches/{id}", **more)).json()
            if batch["status"] in (statuses or ENDED):
                return batch
            await asyncio.sleep(0.01)


async def until_done(client: httpx2.AsyncClient, id: str, num_lines: int) -> None:
    """Wait until so many lines are done of a batch that has more; it runs on."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            batch = await until(client, id, "in_progress", *ENDED)
            assert batch["status"] == "in_progress", batch
            if batch["request_counts"]["completed"] >= num_lines:
                return
            await asyncio.sleep(0.01)


async def content(client: httpx2.AsyncClient, id: str | None) -> list[dict[str, Any]]:
    """The lines of a file of results; none where there is no file."""
    if id is None:
        return []
    answer = await client.get(f"/v1/files/{id}/content")
    assert answer.status_code == 200, answer.text
    return [json.loads(text) for text in answer.text.splitlines()]
