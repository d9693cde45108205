"""What two hosts do with one cache, apart from stored responses: each kind of file and lock.

A host whose locks end there is one to which no lock of the other reaches: flock(2) says it worked,
or that it does not work.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from auth.key_folder import KeyFolder
from auth.key_record import KeyRecord, now
from engines.live_folder import LiveFolder
from engines.native.artefact.store import Part, Recipe, Store, StoredPart
from engines.recovery.crash_records import CrashRecords
from profiles.download.source import Listing, RemoteFile
from profiles.download.verified import Verified
from profiles.store import user_checkpoint
from profiles.store.store import Fetching, expand_once
from profiles.volume import host, kinds, locks
from service.harmony import vocabulary
from service.harmony.vocabulary import write_vocabulary
from service.run.first_key import tell_access, with_made_key
from service.settings.settings import load

MOUNTS = """\
22 1 254:0 / / rw - ext4 /dev/vda rw
30 22 0:50 / {} rw - nfs4 server:/export rw
"""
LOCKS = {"end at the host": None, "ENOLCK": errno.ENOLCK, "ENOTSUP": errno.ENOTSUP}


@pytest.fixture(autouse=True)
def told_anew() -> Iterator[None]:
    yield
    for told in (locks._tell_lock_service, locks._tell_none):
        told.cache_clear()


@pytest.fixture
def volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on a network file system; the rest is this host's own disk."""
    folder = tmp_path / "volume"
    folder.mkdir()
    (tmp_path / "mounts").write_text(MOUNTS.format(folder))
    monkeypatch.setattr(kinds, "MOUNTS", tmp_path / "mounts")
    return folder


@pytest.fixture(params=LOCKS)
def lock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How the volume answers flock(2)."""
    number = LOCKS[request.param]

    def flock(descriptor: int, kind: int) -> None:
        if number is not None:
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    return str(request.param)


def both(work: Callable[[], Any]) -> list[Any]:
    """What two hosts get that do it at the same time."""
    start = threading.Barrier(2)

    def begin() -> Any:
        start.wait()
        return work()

    with ThreadPoolExecutor(2) as pool:
        return [future.result() for future in [pool.submit(begin) for _ in range(2)]]


def test_a_bundled_model_is_expanded_by_one_host(volume: Path, lock: str) -> None:
    expanded: list[Path] = []
    go = threading.Event()

    def expand(folder: Path) -> None:
        expanded.append(folder)
        go.wait(0.2)  # time for the other to do harm
        (folder / "config.json").write_text("{}")

    folders = both(lambda: expand_once(volume, "nano", expand))
    assert [(folder / "config.json").read_text() for folder in folders] == ["{}"] * 2
    assert len(expanded) == 1
    assert [path.name for path in (volume / "models").glob(".nano.*/")] == []


def test_packed_weights_and_kernels_are_made_by_one_host(volume: Path, lock: str) -> None:
    made: list[Path] = []
    go = threading.Event()

    def write(folder: Path) -> dict[str, str]:
        made.append(folder)
        go.wait(0.2)
        (folder / "data").write_text("whole")
        return {}

    def read(found: StoredPart) -> str:
        return (found.folder / "data").read_text()

    part = Part("weights-a", {"layout": 1})
    assert both(lambda: Store(volume).use(part, Recipe(5, write), read)) == ["whole"] * 2
    assert len(made) == 1


def test_a_part_that_another_host_replaces_while_it_is_read_is_read_again(
    volume: Path, lock: str
) -> None:
    store, number = Store(volume), iter(range(3))
    old, new = Part("weights-a", {"layout": 1}), Part("weights-a", {"layout": 2})

    def write(folder: Path) -> dict[str, str]:
        (folder / "data").write_text("whole")
        return {}

    def read(found: StoredPart) -> str:
        if next(number) == 0:  # a newer release on the other host
            Store(volume).use(new, Recipe(5, write), lambda found: None)
            raise FileNotFoundError(errno.ENOENT, "data")
        return (found.folder / "data").read_text()

    store.use(old, Recipe(5, write), lambda found: None)
    assert store.use(old, Recipe(5, write), read) == "whole"


def test_a_disk_that_fails_does_not_cost_the_packed_weights(tmp_path: Path) -> None:
    store, part = Store(tmp_path), Part("weights-a", {"layout": 1})

    def write(folder: Path) -> dict[str, str]:
        (folder / "data").write_text("whole")
        return {}

    def read(found: StoredPart) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    with pytest.raises(OSError, match="too many open files"):
        store.use(part, Recipe(5, write), read)
    assert (tmp_path / "weights-a" / "data").read_text() == "whole"


def test_only_a_lock_service_that_is_down_is_warned_of_and_once(
    volume: Path, lock: str, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "b"):
        with locks.alone(volume / f".{name}.lock", name):
            pass
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == (lock == "ENOLCK"), warnings
    if warnings:
        assert "lock service does not answer (ENOLCK); a lease is used" in warnings[0]
        assert "rpc.statd" in warnings[0]
        assert "NFS 4" in warnings[0]


def test_another_failure_of_a_lock_is_no_lack_of_locks(
    volume: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(OSError, match="broken"), locks.alone(volume / ".a.lock", "a"):
        pytest.fail("it is not ours")


def test_keys_that_two_hosts_make_are_both_there(volume: Path, lock: str) -> None:
    path = volume / "keys.json"
    numbers = iter(range(2))

    def make() -> None:
        number = next(numbers)
        record = KeyRecord(f"{number:012x}", "who", "ab" * 32, now())
        KeyFolder(path).add(record)

    both(make)
    assert len(KeyFolder(path).read()) == 2


def _note(folder: Path) -> None:
    verified = Verified(folder)
    verified.add(RemoteFile("a", 1, "00" * 32))
    verified.save()


@pytest.mark.parametrize(
    "write",
    [
        pytest.param(_note, id="checksums"),
        pytest.param(lambda folder: user_checkpoint._keep({}, folder / "a.json"), id="listing"),
        pytest.param(write_vocabulary, id="vocabulary"),
    ],
)
def test_hosts_with_the_same_process_id_do_not_share_an_unfinished_file(
    tmp_path: Path, write: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In containers both are process 7: one would take the other's away, or cut it."""
    (tmp_path / "a").write_text("a")
    monkeypatch.setattr(vocabulary, "NUM_ORDINARY", 10)  # lines: all take seconds
    replace, is_first = Path.replace, iter([True])

    def replace_after_the_other(path: Path, target: Path) -> Path:
        if next(is_first, False):
            write(tmp_path)
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", replace_after_the_other)
    write(tmp_path)
    assert not [path for path in tmp_path.iterdir() if str(os.getpid()) in path.name]


def test_folders_of_another_hosts_servers_are_left_where_tmpdir_is_shared(
    volume: Path, lock: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(volume))
    folders = []
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
        monkeypatch.setattr(host, "BOOT_ID", tmp_path / name)
        folders.append(LiveFolder())
        folders[-1].make()
    assert all(folder.path.is_dir() for folder in folders)
    for folder in folders:
        folder.remove()


async def test_a_suspect_request_goes_on_where_locks_do_not_work(tmp_path: Path, lock: str) -> None:
    turn = CrashRecords(tmp_path / "suspects", 60).lock
    await turn.enter()
    turn.leave()


def test_the_first_key_of_a_host_is_not_another_hosts(
    volume: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {}
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / name))
        settings = with_made_key(load({"server_host": "::", "cache_path": volume}))
        tell_access(settings, 8000, is_made=True)
        keys[name] = settings.api_key_list[0]
    for name, key in keys.items():
        [file] = (tmp_path / name).glob("harmonium-*/api-key-8000")
        assert file.read_text().strip() == key
    assert list(volume.iterdir()) == []


def test_of_two_lists_of_a_branch_that_moved_the_first_stays(
    volume: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one host would fetch the files of another commit among those of the first."""
    moved = iter("ab")
    listed = threading.Barrier(2)

    def list_files(*_: object) -> Listing:
        revision = next(moved)
        listed.wait()  # the other lists too
        return Listing((RemoteFile("model.gguf", 1, "00" * 32),), revision)

    monkeypatch.setattr(user_checkpoint, "list_files", list_files)
    monkeypatch.setattr(user_checkpoint, "_describe", lambda *_: None)  # a download
    opened = both(lambda: user_checkpoint.open_user("hf://o/m", volume, Fetching(True)))
    assert opened[0].source == opened[1].source
    kept = json.loads((opened[0].folder / ".listing.json").read_text())
    assert opened[0].source.revision == kept["revision"]
    assert [path.name for path in opened[0].folder.iterdir()] == [".listing.json"]
