"""A file of responses that another process keeps locked, and one that an earlier release made."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from parts.responses.store import sqlite as responses_sqlite
from parts.responses.store.base import MissingRecord, ResponseRecord, StoreBounds
from parts.responses.store.sqlite import SqliteStore
from service.run.database import FILE_NAME, FOLDER_NAME, database_of
from service.settings.settings import load
from service.store import guard, sqlite_file
from service.store.base import StoreError
from service.store.sqlite import SqliteDatabase

RECORD = ResponseRecord("resp_a", "ann", b"{}", b"[]")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "responses.sqlite"


@pytest.fixture
def locker(path: Path) -> Iterator[sqlite3.Connection]:
    """Another process's connection: it may take the lock and keep it."""
    connection = sqlite3.connect(path, isolation_level=None)
    yield connection
    connection.close()


async def test_one_operation_waits_for_the_lock_and_the_others_fail_at_once(
    path: Path,
    locker: sqlite3.Connection,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(sqlite_file, "BUSY_TIMEOUT_S", 0.5)
    monkeypatch.setattr(guard, "PAUSE_S", 60.0)
    store = SqliteStore(SqliteDatabase(path))
    await store.put(RECORD)
    locker.execute("BEGIN EXCLUSIVE")
    asked = [store.get("resp_a", "ann") for _ in range(60)]
    failed = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(error) for error in failed] == [StoreError] * 60
    failures = [line for line in caplog.messages if "failed" in line]
    assert len(failures) == 1, "each of them waited"
    assert not await store.lasts(), "an answer that begins now must not say it is stored"
    await store.database.close()


async def test_it_is_used_again_after_the_pause(
    path: Path, locker: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "BUSY_TIMEOUT_S", 0.05)
    monkeypatch.setattr(guard, "PAUSE_S", 0.05)
    store = SqliteStore(SqliteDatabase(path))
    await store.put(RECORD)
    locker.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StoreError, match="locked"):
        await store.get("resp_a", "ann")
    locker.execute("ROLLBACK")
    async with asyncio.timeout(60):
        while True:
            try:
                assert (await store.get("resp_a", "ann")).id == "resp_a"
                break
            except StoreError:
                await asyncio.sleep(0.01)
    await store.database.close()


async def test_a_lock_at_the_first_use_leaves_nothing_in_memory_for_good(
    path: Path, locker: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "BUSY_TIMEOUT_S", 0.05)
    monkeypatch.setattr(guard, "PAUSE_S", 0.0)
    locker.execute("BEGIN EXCLUSIVE")
    store = SqliteStore(SqliteDatabase(path, can_fall_back=True))
    with pytest.raises(StoreError):
        await store.put(RECORD)
    locker.execute("ROLLBACK")
    await store.put(RECORD)
    assert await store.lasts()
    await store.database.close()


async def test_a_lock_at_the_start_does_not_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "BUSY_TIMEOUT_S", 0.05)
    monkeypatch.setattr(guard, "PAUSE_S", 0.0)
    path = tmp_path / FOLDER_NAME / FILE_NAME
    path.parent.mkdir(mode=0o700)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    database = database_of(load({"cache_path": tmp_path}))
    assert isinstance(database, SqliteDatabase)
    store = SqliteStore(database)
    other.close()
    await store.put(RECORD)
    assert await store.lasts()
    await store.database.close()


async def test_shares_are_counted_for_what_an_earlier_release_stored(path: Path) -> None:
    with sqlite3.connect(path) as old:
        whole = responses_sqlite._SCHEMA.replace("BEGIN IMMEDIATE;", "")
        old.executescript(whole.partition("CREATE TABLE IF NOT EXISTS shares")[0])
        for id, owner, used_at in (
            ("resp_bob", "bob", 1),
            ("resp_1", "ann", 2),
            ("resp_2", "ann", 3),
        ):
            old.execute(
                "INSERT INTO responses VALUES (?, ?, zeroblob(300), '', 1, NULL, 0, ?, 0, 300)",
                (id, owner, used_at),
            )
    old.close()
    store = SqliteStore(
        SqliteDatabase(path, clock=lambda: 10.0), StoreBounds(max_age_s=1000, max_bytes=1000)
    )
    await store.put(ResponseRecord("resp_3", "ann", b"x" * 300, b""))
    assert (await store.get("resp_bob", "bob")).id == "resp_bob"
    with pytest.raises(MissingRecord):
        await store.get("resp_1", "ann")
    await store.database.close()
