"""What cannot be kept is told before anything is fetched, with a command that works."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import NamedTuple

import pytest

from profiles.download.folder import UNFINISHED
from profiles.errors import ModelStoreError
from profiles.store import store
from service.run import download_place
from service.run.download_place import check_place, free_bytes
from service.run.scratch import with_cache
from service.settings.settings import load
from tests.service.run.conftest import launch


class Wanted(NamedTuple):
    name: str = "model.safetensors"
    size_bytes: int = 10**9
    sha256: str | None = None


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the user is in can be written and has room."""
    here = tmp_path / "here"
    here.mkdir(mode=0o777)
    monkeypatch.chdir(here)
    monkeypatch.setattr(download_place, "free_bytes", lambda _folder: 10**13)
    return here


def refusal(cache: Path, *files: Wanted) -> str:
    with pytest.raises(ModelStoreError) as raised:
        check_place("gpt-oss-20b", files or [Wanted()], cache / "models/gpt-oss-20b", cache)
    return str(raised.value)


def test_a_cache_that_cannot_be_made_is_told_with_one_that_can(elsewhere: Path) -> None:
    said = refusal(Path("/dev/null/cache"))
    assert "gpt-oss-20b has to be downloaded (1.0 GB)" in said
    assert "/dev/null/cache/models/gpt-oss-20b cannot be written by user" in said
    [command] = re.findall("`([^`]+)`", said)
    *words, folder = shlex.split(command)
    assert words == ["harmonium", "serve", "gpt-oss-20b", "--cache-path"]
    Path(folder).mkdir()  # nobody stops this user there
    assert Path(folder).parent == elsewhere


def test_a_disk_without_room_is_told_unless_the_rest_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    part = cache / "models/gpt-oss-20b" / UNFINISHED / "model.safetensors"
    part.parent.mkdir(parents=True)
    rooms = {cache / "models/gpt-oss-20b": 10**9}  # 64 MB are spare
    monkeypatch.setattr(download_place, "free_bytes", lambda folder: rooms.get(folder, 10**13))
    assert "has 1.0 GB free of the 1.1 GB" in refusal(cache)
    part.write_bytes(os.urandom(1 << 20) * 100)  # of a start before
    check_place("gpt-oss-20b", [Wanted()], cache / "models/gpt-oss-20b", cache)


def test_where_no_disk_has_room_the_command_asks_for_a_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(download_place, "free_bytes", lambda _folder: 10**6)
    assert "--cache-path FOLDER` with a folder on a disk with" in refusal(tmp_path)
    check_place("gpt-oss-20b", [], tmp_path, tmp_path)


def test_the_room_of_a_folder_that_is_not_there_is_that_of_its_disk(tmp_path: Path) -> None:
    assert free_bytes(tmp_path / "a" / "b") > 0


@pytest.mark.usefixtures("machine")
def test_a_start_looks_before_it_downloads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "to_fetch", lambda *_: [Wanted()])
    with pytest.raises(ModelStoreError, match="cannot be written by user"):
        launch(model_name="gpt-oss-20b", cache_path="/dev/null/cache")


def test_a_temporary_cache_takes_no_download(
    closed_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for unusable in (closed_folder, closed_folder / "cache", Path("/dev/null/cache")):
        asked = load({"cache_path": unusable})
        found = with_cache(asked)
        assert found.cache_path.is_dir()
        assert str(found.cache_path) in caplog.text
        with pytest.raises(ModelStoreError, match=f"{unusable} cannot be written"):
            check_place("gpt-oss-20b", [Wanted()], found.cache_path / "m", found.cache_path)


def test_a_cache_that_can_be_used_or_made_stays(tmp_path: Path) -> None:
    for usable in (tmp_path, tmp_path / "not" / "there"):
        assert with_cache(load({"cache_path": usable})).cache_path == usable
