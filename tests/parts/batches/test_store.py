"""What both stores promise beyond what the routes show."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from parts.batches.store.base import (
    MissingObject,
    ObjectInUse,
    ObjectStore,
    StorageBounds,
    StoredObject,
)
from parts.batches.store.redis import RedisObjects
from parts.batches.store.sqlite import SqliteObjects
from service.store.sqlite import Database, SqliteDatabase

DAY_S = 86_400.0


def store_on(database: Database) -> ObjectStore:
    if isinstance(database, SqliteDatabase):
        return SqliteObjects(database, StorageBounds(1000))
    return RedisObjects(database, StorageBounds(1000))


@pytest.fixture
def store(open_database: Callable[[], Database]) -> ObjectStore:
    return store_on(open_database())


def file(id: str, lasts_s: float = DAY_S) -> StoredObject:
    return StoredObject(id, "file", "t", b"{}", lasts_s, content=f"{id}.jsonl", num_bytes=10)


def batch(id: str, uses: str) -> StoredObject:
    return StoredObject(id, "batch", "t", b"{}", DAY_S, uses=uses)


async def until_gone(store: ObjectStore, id: str) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                await store.get("file", id, "t")
            except MissingObject:
                return
            await asyncio.sleep(0.01)


async def test_the_input_of_a_batch_outlives_its_time_until_the_batch_ends(
    store: ObjectStore,
) -> None:
    for id in ("read", "unread"):
        await store.put(file(id, lasts_s=1))
    await store.put(batch("b", uses="read"))
    await until_gone(store, "unread")
    assert (await store.get("file", "read", "t")).content == "read.jsonl"
    assert await store.sweep(10) == ["unread.jsonl"]
    with pytest.raises(ObjectInUse):
        await store.delete("file", "read", "t")
    assert await store.finish("b", 1, b"{}", ())
    await until_gone(store, "read")


async def test_an_end_is_written_once_with_its_files_and_by_the_last_writer(
    store: ObjectStore,
) -> None:
    await store.put(file("in"))
    await store.put(batch("b", uses="in"))
    assert await store.write("b", 2, b'{"n":1}', 500)
    assert not await store.write("b", 1, b'{"n":2}')
    assert not await store.finish("b", 1, b"{}", [file("old")])
    assert await store.room("t") == -10  # a tenant may have half; what a batch writes counts
    assert await store.finish("b", 2, b'{"n":3}', [file("out")])
    assert not await store.finish("b", 2, b"{}", [file("again")])
    assert (await store.get("batch", "b", "t")).document == b'{"n":3}'
    assert await store.room("t") == 480
    for id in ("old", "again"):
        with pytest.raises(MissingObject):
            await store.get("file", id, "t")
    assert (await store.get("file", "out", "t")).num_bytes == 10


async def test_a_batch_needs_an_input_of_its_tenant(store: ObjectStore) -> None:
    await store.put(file("in"))
    for new in (
        batch("b", uses="none"),
        StoredObject("c", "batch", "other", b"{}", DAY_S, uses="in"),
    ):
        with pytest.raises(MissingObject):
            await store.put(new)
