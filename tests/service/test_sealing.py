"""Texts that clients keep for the server: only for whom and what they were sealed."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.sealing import NotSealed, Seals
from service.store.sqlite import SqliteDatabase
from tests.service.conftest import open_redis, redis_url

__all__ = ["redis_url"]

SECRET, OTHER = "a-secret-of-the-replicas", "another-one-that-is-older"


@pytest.fixture
def database() -> SqliteDatabase:
    return SqliteDatabase()


async def test_a_sealed_text_is_opened_for_the_same_tenant_and_purpose_alone(
    database: SqliteDatabase,
) -> None:
    seals = Seals(database, [SECRET])
    sealed = await seals.seal("compaction", "team", "the code word is ember")
    assert "ember" not in sealed
    assert sealed != await seals.seal("compaction", "team", "the code word is ember")
    assert await seals.open("compaction", "team", sealed) == "the code word is ember"
    for purpose, tenant in (("compaction", "rival"), ("reasoning", "team"), ("compaction", "")):
        with pytest.raises(NotSealed):
            await seals.open(purpose, tenant, sealed)


@pytest.mark.parametrize("text", ["", "plain", "hs1.", "hs1.AAAA", "hs1.é", "hs2.AAAA"])
async def test_what_was_not_sealed_is_refused(database: SqliteDatabase, text: str) -> None:
    with pytest.raises(NotSealed):
        await Seals(database, [SECRET]).open("compaction", "", text)


async def test_a_text_that_was_altered_anywhere_is_refused(database: SqliteDatabase) -> None:
    seals = Seals(database, [SECRET])
    sealed = await seals.seal("compaction", "", "text")
    for place in range(4, len(sealed) - 4):
        other = "A" if sealed[place] != "A" else "B"
        with pytest.raises(NotSealed):
            await seals.open("compaction", "", sealed[:place] + other + sealed[place + 1 :])


async def test_replicas_share_secrets_and_change_them_one_after_the_other(
    database: SqliteDatabase,
) -> None:
    before, during = Seals(database, [OTHER]), Seals(database, [SECRET, OTHER])
    assert await during.open("c", "", await before.seal("c", "", "old")) == "old"
    after = Seals(database, [SECRET])
    assert await after.open("c", "", await during.seal("c", "", "new")) == "new"
    with pytest.raises(NotSealed, match="its key is not known"):
        await after.open("c", "", await before.seal("c", "", "old"))
    await database.close()


async def test_without_a_secret_those_who_share_the_file_share_one(tmp_path: Path) -> None:
    first, second = (SqliteDatabase(tmp_path / "store") for _ in range(2))
    sealed = await Seals(first).seal("c", "", "text")
    assert await Seals(second).open("c", "", sealed) == "text"
    await first.close()
    await second.close()
    again = SqliteDatabase(tmp_path / "store")
    assert await Seals(again).open("c", "", sealed) == "text"
    await again.close()


async def test_without_a_secret_those_who_share_redis_share_one(redis_url: str) -> None:
    first, second = open_redis(redis_url), open_redis(redis_url)
    sealed = await Seals(first).seal("c", "", "text")
    assert await Seals(second).open("c", "", sealed) == "text"
    await first.close()
    await second.close()
