"""Temporary folders of processes that were killed go at the next start; those of others stay."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from engines.live_folder import LiveFolder, live_folder

OWNER = """
import sys, tempfile
from engines.live_folder import LiveFolder
tempfile.tempdir = sys.argv[1]
folder = LiveFolder()
folder.make()
(folder.path / "socket").touch()
print(folder.path, flush=True)
sys.stdin.read()
"""


class Owner:
    """A process with a folder of its own."""

    def __init__(self, parent: Path) -> None:
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", OWNER, str(parent)]
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)

    @property
    def folder(self) -> Path:
        assert self.process.stdout is not None
        return Path(self.process.stdout.readline().strip())

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def start_owner(temp_folder: Path) -> Iterator[Callable[[], Owner]]:
    owners: list[Owner] = []

    def start() -> Owner:
        owners.append(Owner(temp_folder))
        return owners[-1]

    yield start
    for owner in owners:
        owner.kill()


@pytest.mark.heavy
def test_a_start_sweeps_up_after_the_killed_and_after_nobody_else(
    start_owner: Callable[[], Owner], temp_folder: Path
) -> None:
    killed, living = start_owner(), start_owner()
    left, used = killed.folder, living.folder
    killed.kill()
    assert (left / "socket").exists()
    ours, second = LiveFolder(), LiveFolder()
    ours.make()
    second.make()
    assert sorted(temp_folder.iterdir()) == sorted([used, ours.path, second.path])
    assert (used / "socket").exists()
    assert ours.path.stat().st_mode & 0o777 == 0o700
    for folder in (ours, second):
        folder.remove()
    assert [*temp_folder.iterdir()] == [used]


def test_what_only_looks_like_a_folder_of_ours_stays(temp_folder: Path) -> None:
    theirs = temp_folder / "documents"
    theirs.mkdir()
    (theirs / "letter").touch()
    (temp_folder / "harmonium-live-link").symlink_to(theirs)
    (temp_folder / "harmonium-live-file").touch()
    ours = LiveFolder()
    ours.make()
    ours.remove()
    names = {path.name for path in temp_folder.iterdir()}
    assert names == {"documents", "harmonium-live-link", "harmonium-live-file"}
    assert (theirs / "letter").exists()


def test_many_that_start_at_once_do_not_sweep_each_other(temp_folder: Path) -> None:
    def live(_: int) -> bool:
        folder = LiveFolder()
        folder.make()
        (folder.path / "socket").touch()
        is_there = (folder.path / "socket").exists()
        folder.remove()
        return is_there

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(live, range(200)))
    assert [*temp_folder.iterdir()] == []


def test_a_folder_for_temporary_files_that_is_not_there_is_an_error(
    temp_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(temp_folder / "missing"))
    with pytest.raises(FileNotFoundError, match="missing"):
        LiveFolder().make()


@pytest.mark.heavy
def test_a_block_has_a_folder_that_a_kill_does_not_leave_for_good(
    start_owner: Callable[[], Owner], temp_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = start_owner()
    left = owner.folder
    owner.kill()
    monkeypatch.setattr(tempfile, "tempdir", str(temp_folder))
    assert left.exists()
    with live_folder() as folder:
        (folder / "kernel").touch()
        assert [path for path in temp_folder.iterdir() if path.is_dir()] == [folder]
    assert not folder.exists()
