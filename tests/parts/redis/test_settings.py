"""What a Redis that is named is used for, and that nothing loads it otherwise."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from parts.redis.database import RedisDatabase
from service.run.database import check_place, database_of
from service.settings.errors import SettingsError
from service.settings.settings import load
from service.store.base import StoreError
from service.store.sqlite import SqliteDatabase

URL = "redis://:hidden-word@127.0.0.1:1/0"


async def test_redis_is_used_when_it_is_named_and_its_library_only_then(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NIM_REDIS_URL", URL)
    settings = load()
    assert "hidden-word" not in repr(settings)
    database = database_of(settings)
    assert isinstance(database, RedisDatabase)
    with pytest.raises(StoreError, match="Redis"):
        await database.call("return 1", (), ())
    await database.close()
    monkeypatch.delenv("NIM_REDIS_URL")
    monkeypatch.setitem(sys.modules, "parts.redis.database", None)
    database = database_of(load({"cache_path": tmp_path}))
    assert isinstance(database, SqliteDatabase)
    await database.close()


def test_a_url_that_is_none_of_redis_is_refused_unshown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIM_REDIS_URL", "http://:secret@host")
    with pytest.raises(SettingsError, match="redis://") as caught:
        load()
    assert "secret" not in str(caught.value)


def test_with_a_redis_a_shared_cache_needs_no_place(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[Path] = []
    monkeypatch.setattr("service.run.database.check_volume", looked.append)
    check_place(load({"cache_path": tmp_path, "redis_url": URL}))
    assert not caplog.records
    assert not looked


def test_the_doctor_says_whether_it_responds() -> None:
    from parts.redis.checks import CHECKS

    (check,) = CHECKS.of(load({"redis_url": URL}))
    assert (check.name, check.state) == ("redis", "warning")
    assert "127.0.0.1 port 1 does not respond" in check.detail
    assert "hidden-word" not in check.detail
    assert not [*CHECKS.of(load())]
