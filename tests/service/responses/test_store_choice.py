"""Which store the settings ask for, and what happens when it cannot be used."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from service.responses.store import MissingRecord, Record, StoreError
from service.responses.store_choice import FILE_NAME, store_of
from service.responses.store_sqlite import SqliteStore
from service.settings import SettingsError, load

RECORD = Record("resp_a", "", b"{}", b"[]")


async def test_by_default_it_is_a_file_in_the_cache_made_at_the_first_use(tmp_path: Path) -> None:
    store = store_of(load({"cache_path": tmp_path}))
    assert not (tmp_path / FILE_NAME).exists()
    await store.put(RECORD)
    assert (tmp_path / FILE_NAME).exists()
    await store.close()
    again = store_of(load({"cache_path": tmp_path}))
    assert (await again.get("resp_a", "")).id == "resp_a"
    await again.close()


async def test_a_cache_that_cannot_be_written_leaves_memory_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    store = store_of(load({"cache_path": tmp_path / "file"}))
    await store.put(RECORD)
    assert (await store.get("resp_a", "")).id == "resp_a"
    assert "in memory only" in caplog.text
    await store.close()


def test_a_named_file_that_cannot_be_opened_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no database, and long enough to be looked at as one")
    with pytest.raises(StoreError, match=r"NIM_RESPONSES_PATH is .*file"):
        store_of(load({"responses_path": tmp_path / "file"}))


async def test_the_bounds_are_the_settings(tmp_path: Path) -> None:
    path = tmp_path / "own.sqlite"
    settings = load({"responses_path": path, "responses_max_bytes": 1 << 20})
    store = store_of(settings)
    for name in "abc":
        await store.put(Record(name, "", b"x" * 400_000, b""))
    with pytest.raises(MissingRecord):
        await store.get("a", "")
    assert (await store.get("c", "")).id == "c"
    await store.close()
    brief = store_of(load({"responses_path": path, "responses_max_age_s": 0.001}))
    with pytest.raises(MissingRecord):
        await brief.get("c", "")
    await brief.close()


async def test_redis_is_used_when_it_is_named_and_its_library_only_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NIM_REDIS_URL", "redis://:secret@127.0.0.1:1/0")
    settings = load()
    assert "secret" not in repr(settings)
    store = store_of(settings)
    with pytest.raises(StoreError, match="Redis"):
        await store.get("resp_a", "")
    await store.close()
    monkeypatch.delenv("NIM_REDIS_URL")
    monkeypatch.setitem(sys.modules, "service.responses.store_redis", None)
    assert isinstance(store_of(load()), SqliteStore)


def test_a_url_that_is_none_of_redis_is_refused_unshown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIM_REDIS_URL", "http://:secret@host")
    with pytest.raises(SettingsError, match="redis://") as caught:
        load()
    assert "secret" not in str(caught.value)
