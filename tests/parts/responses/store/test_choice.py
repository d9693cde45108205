"""Which store the settings ask for, and what happens when it cannot be used."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest

from parts.responses.settings import ResponsesSettings
from parts.responses.store.base import MissingRecord, ResponseRecord, StoreBounds
from parts.responses.store.redis import RedisStore
from parts.responses.store.sqlite import SqliteStore
from parts.responses.stored import store_on
from profiles.volume import kinds
from service.run.database import FILE_NAME, FOLDER_NAME, check_place, database_of
from service.settings.settings import Settings, load
from service.store.base import StoreError
from service.store.sqlite import SqliteDatabase

RECORD = ResponseRecord("resp_a", "", b"{}", b"[]")


def store_of(settings: Settings) -> SqliteStore | RedisStore:
    own = settings.of(ResponsesSettings)
    bounds = StoreBounds(own.responses_max_age_s, own.responses_max_bytes)
    return store_on(database_of(settings), bounds)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_by_default_it_is_a_file_in_the_cache_made_at_the_first_use(tmp_path: Path) -> None:
    store = store_of(load({"cache_path": tmp_path}))
    path = tmp_path / FOLDER_NAME / FILE_NAME
    assert not path.exists()
    await store.put(RECORD)
    assert path.exists()
    assert await store.lasts()
    await store.database.close()
    again = store_of(load({"cache_path": tmp_path}))
    assert (await again.get("resp_a", "")).id == "resp_a"
    await again.database.close()


@pytest.mark.parametrize("is_named", [False, True])
async def test_nobody_else_may_read_it_not_even_what_was_lax_before(
    tmp_path: Path, is_named: bool
) -> None:
    folder = tmp_path / FOLDER_NAME
    given = {"responses_path": folder / FILE_NAME} if is_named else {"cache_path": tmp_path}
    earlier = os.umask(0o022)
    try:
        store = store_of(load(given))
        await store.put(RECORD)
        parts = sorted(folder.iterdir())
        ends = ("", "-owner", "-shm", "-wal")
        assert [path.name for path in parts] == [FILE_NAME + end for end in ends]
        assert {mode(path) for path in parts} == {0o600}
        assert mode(folder) == 0o700
        for path in parts:
            path.chmod(0o644)
        if not is_named:  # what is named may lie beside other things
            folder.chmod(0o755)
        again = store_of(load(given))
        assert {mode(path) for path in parts} == {0o600}
        assert mode(folder) == 0o700
        assert (await again.get("resp_a", "")).id == "resp_a"
        await again.database.close()
        await store.database.close()
    finally:
        os.umask(earlier)


async def test_a_file_of_before_moves_into_the_folder(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    old = SqliteStore(SqliteDatabase(tmp_path / "old" / FILE_NAME))
    await old.put(RECORD)
    for path in (tmp_path / "old").iterdir():  # as a server that was killed leaves them
        (tmp_path / path.name).write_bytes(path.read_bytes())
    await old.database.close()
    store = store_of(load({"cache_path": tmp_path}))
    assert (await store.get("resp_a", "")).id == "resp_a"
    assert not list(tmp_path.glob(f"{FILE_NAME}*"))
    await store.database.close()


@pytest.mark.parametrize("is_corrupt", [False, True])
async def test_a_cache_that_cannot_be_used_leaves_memory_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_corrupt: bool
) -> None:
    cache = tmp_path / "cache"
    if is_corrupt:
        (cache / FOLDER_NAME).mkdir(parents=True)
        (cache / FOLDER_NAME / FILE_NAME).write_text("no database, and long enough for one " * 9)
    else:
        cache.touch()
    store = store_of(load({"cache_path": cache}))
    assert is_corrupt == ("in memory only" in caplog.text), "told at the start if it is there"
    assert not await store.lasts()
    await store.put(RECORD)
    assert (await store.get("resp_a", "")).id == "resp_a"
    assert "in memory only" in caplog.text
    await store.database.close()


async def test_a_folder_of_another_uid_leaves_memory_and_says_so(
    closed_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A cache that several uids share, as on OpenShift: responses are private to each."""
    store = store_of(load({"cache_path": closed_folder}))
    assert "in memory only" in caplog.text
    await store.put(RECORD)
    assert (await store.get("resp_a", "")).id == "resp_a"
    await store.database.close()


def test_a_named_file_that_cannot_be_opened_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no database, and long enough to be looked at as one")
    with pytest.raises(StoreError, match=r"NIM_RESPONSES_PATH is .*file"):
        store_of(load({"responses_path": tmp_path / "file"}))


async def test_the_bounds_are_the_settings(tmp_path: Path) -> None:
    path = tmp_path / "own.sqlite"
    settings = load({"responses_path": path, "responses_max_bytes": 1 << 20})
    store = store_of(settings)
    for name in "abc":
        await store.put(ResponseRecord(name, "", b"x" * 400_000, b""))
    with pytest.raises(MissingRecord):
        await store.get("a", "")
    assert (await store.get("c", "")).id == "c"
    await store.database.close()
    brief = store_of(load({"responses_path": path, "responses_max_age_s": 0.001}))
    with pytest.raises(MissingRecord):
        await brief.get("c", "")
    await brief.database.close()


MOUNTS = """\
22 1 254:0 / / rw - ext4 /dev/vda rw
30 22 0:50 / {} rw - nfs4 server:/export rw
"""


@pytest.fixture
def shared_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache on a network file system, and TMPDIR on this host's own disk."""
    cache, temporary = tmp_path / "cache", tmp_path / "tmp"
    for folder in (cache, temporary):
        folder.mkdir()
    (tmp_path / "mounts").write_text(MOUNTS.format(cache))
    monkeypatch.setattr(kinds, "MOUNTS", tmp_path / "mounts")
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    return cache


@pytest.mark.parametrize("api_workers", [1, 2])
async def test_in_a_shared_cache_each_host_has_its_own_file_and_says_so_once(
    shared_cache: Path, api_workers: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = load({"cache_path": shared_cache, "api_workers": api_workers})
    check_place(settings)
    stores = [store_of(settings) for _ in range(api_workers)]
    await stores[0].put(RECORD)
    assert (await stores[-1].get("resp_a", "")).id == "resp_a"
    assert await stores[0].lasts()
    for store in stores:
        await store.database.close()
    [path] = (tmp_path / "tmp").glob("harmonium-*/responses-*/responses.sqlite")
    assert list(shared_cache.iterdir()) == []
    assert mode(path.parents[1]) == 0o700
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1, told
    assert "volume of type nfs4, which other hosts may open" in told[0]
    assert f"keeps its responses in {path}" in told[0]
    again = store_of(settings)
    assert (await again.get("resp_a", "")).id == "resp_a"
    await again.database.close()


def test_a_named_file_on_a_volume_of_other_hosts_is_refused_with_the_remedy(
    shared_cache: Path,
) -> None:
    settings = load({"responses_path": shared_cache / "named.sqlite"})
    for choose in (check_place, store_of):
        with pytest.raises(StoreError, match="type nfs4, which other hosts may open") as caught:
            choose(settings)
        assert "NIM_RESPONSES_PATH is" in str(caught.value)
        assert "NIM_REDIS_URL" in str(caught.value)
        assert "emptyDir" in str(caught.value)
    assert list(shared_cache.iterdir()) == []


async def test_a_folder_that_another_user_made_for_us_is_not_used(
    shared_cache: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "tmp" / f"harmonium-{os.geteuid()}").symlink_to(tmp_path / "theirs")
    store = store_of(load({"cache_path": shared_cache}))
    await store.put(RECORD)
    assert not await store.lasts()
    assert "belongs to another user" in caplog.text
    assert list((tmp_path / "theirs").iterdir()) == []
    await store.database.close()
