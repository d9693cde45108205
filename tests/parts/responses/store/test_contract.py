"""What every store of responses does: one suite for SQLite in a file, in memory, and Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from parts.responses.store.base import MissingRecord, ResponseRecord, ResponseStore, StoreBounds
from parts.responses.store.redis import RedisStore
from parts.responses.store.sqlite import SqliteStore
from service.store.ages import DAY_S
from service.store.sqlite import SqliteDatabase
from tests.service.conftest import open_redis

OpenStore = Callable[[], ResponseStore]

A = ResponseRecord("resp_a", "ann", b'{"id":"resp_a"}', b"[1]")
RUNNING = replace(A, is_final=False)


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def max_age_s() -> float:
    return 100


@pytest.fixture(params=["file", "memory", pytest.param("redis", marks=pytest.mark.heavy)])
async def open_store(
    request: pytest.FixtureRequest, tmp_path: Path, clock: Clock, max_age_s: float
) -> AsyncIterator[OpenStore]:
    """Opens the same store again and again, as several processes do; memory is one store."""
    bounds = StoreBounds(max_age_s=max_age_s, max_bytes=1000)
    opened: list[SqliteStore | RedisStore] = []
    url = request.getfixturevalue("redis_url") if request.param == "redis" else ""

    path = tmp_path / "new" / "responses.sqlite"

    def open_another() -> ResponseStore:
        if request.param == "file":
            opened.append(SqliteStore(SqliteDatabase(path, clock=clock), bounds))
        elif request.param == "redis":
            opened.append(RedisStore(open_redis(url, clock), bounds))
        elif not opened:
            opened.append(SqliteStore(SqliteDatabase(clock=clock), bounds))
        return opened[-1]

    if url:
        await _flush(url)
    yield open_another
    for store in opened:
        await store.database.close()
        await store.database.close()


async def _flush(url: str) -> None:
    from redis.asyncio import Redis

    redis = Redis.from_url(url)
    await redis.flushall()
    await redis.aclose()


@pytest.fixture
def store(open_store: OpenStore) -> ResponseStore:
    return open_store()


async def test_a_record_is_found_again_from_another_process(open_store: OpenStore) -> None:
    record = replace(A, previous_id="resp_0")
    await open_store().put(record, b"[2]")
    other = open_store()
    assert await other.get("resp_a", "ann") == record
    assert await other.pieces("resp_a") == [b"[2]"]


async def test_only_who_made_it_finds_it(store: ResponseStore) -> None:
    await store.put(A)
    with pytest.raises(MissingRecord):
        await store.get("resp_a", "bob")
    with pytest.raises(MissingRecord):
        await store.delete("resp_a", "bob")
    assert (await store.get("resp_a", "ann")).id == "resp_a"


async def test_what_is_deleted_is_gone_with_its_pieces(store: ResponseStore) -> None:
    """vllm#39624."""
    await store.put(A, b"[2]")
    await store.delete("resp_a", "ann")
    with pytest.raises(MissingRecord):
        await store.get("resp_a", "ann")
    with pytest.raises(MissingRecord):
        await store.delete("resp_a", "ann")
    assert await store.pieces("resp_a") == []


async def test_a_running_response_grows_and_ends_once(open_store: OpenStore) -> None:
    writer, reader = open_store(), open_store()
    await writer.put(RUNNING)
    assert await writer.extend("resp_a", b"[1]", b"\1\0")
    assert await writer.extend("resp_a", b"")
    assert await writer.extend("resp_a", b"[2]", b"\2\0")
    assert not (await reader.get("resp_a", "ann")).is_final
    assert await reader.pieces("resp_a") == [b"[1]", b"[2]"]
    assert await reader.pieces("resp_a", 1) == [b"[2]"]
    assert await reader.token_ids("resp_a") == b"\1\0\2\0"
    assert await writer.finish("resp_a", b"the end", b"[3]")
    assert not await reader.finish("resp_a", b"another end")
    assert not await writer.extend("resp_a", b"[4]")
    ended = await reader.get("resp_a", "ann")
    assert (ended.is_final, ended.response) == (True, b"the end")
    assert await reader.pieces("resp_a") == [b"[1]", b"[2]", b"[3]"]
    assert await reader.token_ids("resp_a") == b""


async def test_an_earlier_writer_is_refused_once_a_later_one_has_written(
    open_store: OpenStore,
) -> None:
    """A worker that was taken for dead comes back: what it writes would be said twice."""
    first, second = open_store(), open_store()
    await first.put(RUNNING)
    assert await first.extend("resp_a", b"[1]", b"\1\0", fence=1)
    assert await second.extend("resp_a", b"", fence=2)
    assert not await first.extend("resp_a", b"[1]", b"\1\0", fence=1)
    assert not await first.finish("resp_a", b"the end", b"[2]", fence=1)
    assert await second.extend("resp_a", b"[2]", b"\2\0", fence=2)
    assert await second.finish("resp_a", b"the end", fence=2)
    assert await first.pieces("resp_a") == [b"[1]", b"[2]"]


async def test_nothing_is_written_for_what_was_deleted(open_store: OpenStore) -> None:
    writer, reader = open_store(), open_store()
    await writer.put(RUNNING)
    await reader.delete("resp_a", "ann")
    assert not await writer.extend("resp_a", b"[2]", b"\2\0")
    assert not await writer.finish("resp_a", b"the end")
    assert await writer.token_ids("resp_a") == b""


async def test_what_nobody_used_for_too_long_is_gone(store: ResponseStore, clock: Clock) -> None:
    await store.put(A)
    await store.put(replace(A, id="resp_c"))
    clock.now += 60
    await store.get("resp_a", "ann")
    clock.now += 60
    with pytest.raises(MissingRecord):
        await store.get("resp_c", "ann")
    assert (await store.get("resp_a", "ann")).id == "resp_a"


async def test_the_least_used_make_room(store: ResponseStore, clock: Clock) -> None:
    """vllm#48275: stored responses do not grow without bounds."""
    for name in "abcdefgh":
        await store.put(replace(A, id=f"resp_{name}", response=b"x" * 100), b"y" * 50)
        clock.now += 1
        await store.get("resp_a", "ann")
    kept = []
    for name in "abcdefgh":
        try:
            kept.append((await store.get(f"resp_{name}", "ann")).id[-1])
        except MissingRecord:
            assert await store.pieces(f"resp_{name}") == []
    assert "".join(kept) == "adefgh"  # 6 of 153 bytes fit into 1000


async def test_many_callers_at_once_lose_nothing(open_store: OpenStore) -> None:
    stores = [open_store() for _ in range(3)]
    await stores[0].put(RUNNING)
    await asyncio.gather(*(stores[n % 3].extend("resp_a", b"[%d]" % n) for n in range(60)))
    assert sorted(await stores[0].pieces("resp_a")) == sorted(b"[%d]" % n for n in range(60))


async def test_nobody_drives_out_who_has_less(store: ResponseStore, clock: Clock) -> None:
    """One who stores much loses their own; the same records, had they one owner, would not fit."""
    await store.put(replace(A, id="resp_bob", owner="bob", response=b"x" * 200))
    for number in range(20):
        clock.now += 1
        await store.put(replace(A, id=f"resp_{number}", response=b"x" * 150))
    assert (await store.get("resp_bob", "bob")).id == "resp_bob"
    assert (await store.get("resp_19", "ann")).id == "resp_19"
    with pytest.raises(MissingRecord):
        await store.get("resp_0", "ann")


async def test_a_share_is_given_back_and_grows_with_the_pieces(
    store: ResponseStore, clock: Clock
) -> None:
    await store.put(replace(A, id="resp_gone", owner="bob", response=b"x" * 600))
    await store.delete("resp_gone", "bob")
    await store.put(replace(A, id="resp_bob", owner="bob"))
    clock.now += 1
    await store.put(RUNNING)
    await store.extend("resp_a", b"y" * 600)
    clock.now += 1
    await store.put(replace(A, id="resp_late", owner="bob", response=b"x" * 450))
    with pytest.raises(MissingRecord):
        await store.get("resp_a", "ann")
    assert (await store.get("resp_bob", "bob")).id == "resp_bob"


YEARS_S = 20 * 365 * 24 * 3600.0


@pytest.mark.parametrize("max_age_s", [10 * DAY_S])
@pytest.mark.parametrize("jump_s", [YEARS_S, -YEARS_S])
async def test_a_wall_clock_that_is_years_off_for_a_while_costs_no_response(
    open_store: OpenStore, clock: Clock, jump_s: float
) -> None:
    store = open_store()
    await store.put(A)
    clock.now += jump_s
    await store.put(replace(A, id="resp_b"))  # which looks what is too old
    other = open_store()  # one that is started meanwhile, or another host with a wrong clock
    await other.put(replace(A, id="resp_c"))
    clock.now -= jump_s
    await store.put(replace(A, id="resp_d"))
    for id in ("resp_a", "resp_b", "resp_c", "resp_d"):
        assert (await store.get(id, "ann")).id == id
        assert (await other.get(id, "ann")).id == id


@pytest.mark.parametrize("max_age_s", [10 * DAY_S])
async def test_what_is_old_goes_after_such_a_jump_as_before(
    open_store: OpenStore, clock: Clock
) -> None:
    store = open_store()
    await store.put(A)
    clock.now += YEARS_S
    await store.put(replace(A, id="resp_b"))
    for number in range(10):
        assert (await store.get("resp_b", "ann")).id == "resp_b"
        clock.now += DAY_S
        await store.put(replace(A, id=f"resp_{number}"))
    with pytest.raises(MissingRecord):
        await store.get("resp_a", "ann")
