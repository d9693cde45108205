"""A file of responses that two hosts would write: what was reported as stored is there."""

from __future__ import annotations

import errno
import fcntl
import gc
import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from profiles.volume import host, kinds, locks
from service.store import owner
from service.store.owner import OpenElsewhere
from service.store.sqlite_file import open_database
from tests.two_hosts import as_second_host, with_own_mounts

ROWS = 300
# Says which rows were reported as stored, and why none could be.
WRITER = """
import sqlite3, sys
from pathlib import Path
from service.store.sqlite_file import open_database

path, name, number = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
try:
    opened = open_database(path)
except OSError as error:
    sys.exit(f"refused: {error}")
opened.execute("CREATE TABLE IF NOT EXISTS things (id TEXT PRIMARY KEY, body BLOB)")
print("open", flush=True)
sys.stdin.readline()
for row in range(number):
    with opened:
        opened.execute("INSERT INTO things VALUES (?, ?)", (f"{name}-{row}", bytes(500)))
    print(f"{name}-{row}", flush=True)
opened.close()
"""


def writer(path: Path, name: str, *prefix: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*prefix, sys.executable, "-c", WRITER, str(path), name, str(ROWS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def rows_in(path: Path) -> set[str]:
    with sqlite3.connect(path) as opened:
        assert opened.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return {id for (id,) in opened.execute("SELECT id FROM things")}


@pytest.mark.heavy
@pytest.mark.parametrize("second", ["of another host", "of another container", "of this host"])
def test_what_two_writers_were_told_is_stored_is_there(tmp_path: Path, second: str) -> None:
    path = tmp_path / "responses.sqlite"
    open_database(path).close()
    Path(f"{path}-shm").touch()  # a place for the second one's mount
    prefix = {
        "of another host": lambda: as_second_host(path, tmp_path / "shm-of-b"),
        "of another container": with_own_mounts,
        "of this host": list,
    }[second]()
    first = writer(path, "a")
    assert first.stdout is not None
    assert first.stdout.readline() == "open\n"
    other = writer(path, "b", *prefix)
    assert other.stdout is not None
    is_open = other.stdout.readline() == "open\n"
    for process in (first, other):
        if process is first or is_open:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
    told, failure = set[str](), {}
    for process in (first, other):
        out, failure[process] = process.communicate(timeout=120)
        told |= set(out.split())
    assert rows_in(path) == told
    assert len(told) == (ROWS if second == "of another host" else 2 * ROWS), failure
    refused = failure[other]
    assert ("is open on another host" in refused) == (second == "of another host"), refused


def test_a_connection_that_nobody_closed_keeps_nobody_out(tmp_path: Path) -> None:
    path = tmp_path / "responses.sqlite"
    lost = open_database(path)
    with Path(f"{path}-owner").open("rb") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    del lost
    gc.collect()
    with Path(f"{path}-owner").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.fixture
def other_kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Become a process of that kernel, to which locks of other kernels do not reach."""
    monkeypatch.setattr(owner, "LEASE_S", 0.6)
    monkeypatch.setattr(owner, "BEAT_S", 0.05)
    monkeypatch.setattr(owner, "_AGREE_S", 0.2)

    def become(name: str) -> None:
        (tmp_path / name).write_text(name)
        monkeypatch.setattr(host, "BOOT_ID", tmp_path / name)
        monkeypatch.setattr(owner, "try_lock", lambda *_: False)

    return become


def test_a_kernel_that_no_lock_reaches_is_told_by_its_lease(
    tmp_path: Path, other_kernel: Callable[[str], None]
) -> None:
    path = tmp_path / "responses.sqlite"
    other_kernel("a")
    opened = open_database(path)
    open_database(path).close()  # a second process there
    other_kernel("b")
    with pytest.raises(OpenElsewhere, match="is open on another host"):
        open_database(path)
    other_kernel("a")
    opened.close()
    other_kernel("b")
    open_database(path).close()  # once the lease has run out


def test_an_owner_that_is_silent_for_its_lease_loses_the_file_and_knows_it(
    tmp_path: Path, other_kernel: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "responses.sqlite"
    other_kernel("a")
    silent = open_database(path)
    assert silent.presence is not None
    silent.presence._left.set()  # as if the process were stopped
    other_kernel("b")
    started = time.monotonic()
    taken = open_database(path)
    assert time.monotonic() - started >= owner.LEASE_S
    assert silent.is_lost
    assert not taken.is_lost
    for connection in (silent, taken):
        connection.close()
    assert json.loads(Path(f"{path}-owner").read_text())["host"] == "b"


def test_a_killed_owner_of_this_kernel_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "responses.sqlite"
    open_database(path).close()
    record = owner._seen(path) | {"index": [0, 0]}
    Path(f"{path}-owner").write_text(json.dumps(record))
    monkeypatch.setattr(owner, "_watch", None)
    open_database(path).close()


MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:50 / {0} rw,relatime shared:7 - {1} server:/export rw
"""


@pytest.mark.parametrize(
    ("kind", "is_shared"),
    [
        *((kind, True) for kind in ("nfs", "nfs4", "cifs", "ceph", "lustre", "gpfs", "9p")),
        *((kind, True) for kind in ("fuse.juicefs", "fuse.s3fs", "virtiofs", "beegfs", "ocfs2")),
        *((kind, False) for kind in ("ext4", "xfs", "overlay", "tmpfs", "fuse.fuse-overlayfs")),
    ],
)
def test_a_file_on_a_volume_of_other_hosts_is_refused_by_its_type(
    kind: str, is_shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume = tmp_path / "a volume"
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS.format(str(volume).replace(" ", "\\040"), kind))
    monkeypatch.setattr(kinds, "MOUNTS", mounts)
    path = volume / "not made yet" / "responses.sqlite"
    assert kinds.shared_type(path) == (kind if is_shared else None)
    assert kinds.shared_type(tmp_path / "beside it") is None
    if is_shared:
        with pytest.raises(OpenElsewhere, match=f"volume of type {kind}, which other hosts"):
            open_database(path)
        assert not volume.exists()
    else:
        open_database(path).close()


def test_locks_are_not_needed_of_a_local_volume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(locks.fcntl, "flock", no_locks)  # type: ignore[attr-defined]
    first = open_database(tmp_path / "responses.sqlite")
    open_database(tmp_path / "responses.sqlite").close()
    first.close()
