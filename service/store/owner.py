"""Which host has a SQLite file open: the index of its log is memory of one host alone.

`<file>-owner` names the host, as the inodes of file and index that it sees. Each process that has
the file open holds a shared lock on it, which the kernel gives back however it ends, and touches it
every few seconds, which other hosts see where locks end at a host. Processes that see the same
files on the same kernel share them. Any other is refused while the owner lives.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import platform
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from profiles.volume.host import this_host
from profiles.volume.kinds import shared_type
from profiles.volume.locks import try_lock

LEASE_S: Final = 15.0  # an owner that has not been seen for so long is gone
BEAT_S: Final = 3.0
_AGREE_S: Final = 2.0  # those who open and close on this host may meet half-way
_PAUSE_S: Final = 0.02
_BYTES: Final = 1024  # of a record
_WRITING: Final = os.O_RDWR | os.O_CREAT

log = logging.getLogger(__name__)

Record = dict[str, Any]


class OpenElsewhere(OSError):
    """Another host has the file open, or may have: its volume is one that others open too."""


class OwnedConnection(sqlite3.Connection):
    """A connection to a file that this host owns while it is open."""

    presence: Presence | None = None

    @property
    def is_lost(self) -> bool:
        """Whether another host has taken the file over, as this process was silent."""
        return self.presence is not None and self.presence.is_lost()

    def __del__(self) -> None:
        self._leave()  # one left open would keep all other processes out

    def close(self) -> None:
        super().close()
        self._leave()

    def _leave(self) -> None:
        presence, self.presence = self.presence, None
        if presence is not None:
            presence.leave()


def check_volume(path: Path) -> None:
    """Raise OpenElsewhere for a file on a volume that other hosts may open."""
    kind = shared_type(path)
    if kind is not None:
        raise OpenElsewhere(
            f"{path} is on a volume of type {kind}, which other hosts may open; a SQLite file is "
            "for one host"
        )


def open_owned(path: Path, connect: Callable[[], OwnedConnection]) -> OwnedConnection:
    """Open a database that is there, on a volume of this host; raises OpenElsewhere, sqlite3.Error
    and OSError.

    Those of this host who open it take turns by a lock on its folder.
    """
    owner, since_s = Path(f"{path}-owner"), time.monotonic()
    while True:
        waited_s = time.monotonic() - since_s
        with _LockedFile(path.parent, os.O_RDONLY) as gate, _LockedFile(owner, _WRITING) as held:
            if gate.take(fcntl.LOCK_EX):
                if _may_open(held, path, is_last=waited_s > _AGREE_S):
                    return _open(held, path, connect)
            elif waited_s > 2 * LEASE_S:
                raise TimeoutError(f"{path.parent} is locked by another process")
        time.sleep(_PAUSE_S)


class _LockedFile:
    """An open file or folder that may be locked, closed at the end of a block unless kept."""

    def __init__(self, path: Path, flags: int) -> None:
        self.path, self._flags = path, flags
        self.descriptor = -1
        self.works = True  # as far as is known

    def __enter__(self) -> _LockedFile:
        self.descriptor = os.open(self.path, self._flags | os.O_CLOEXEC, 0o600)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def take(self, kind: int) -> bool:
        """Lock it; false where another process has it. Where locks do not work it counts as taken,
        and `works` is false."""
        try:
            self.works = try_lock(self.descriptor, kind, self.path, "its lease alone tells hosts")
        except BlockingIOError:
            return False
        return True

    def kept(self) -> _LockedFile:
        """The same for a longer time than the block's."""
        other = _LockedFile(self.path, self._flags)
        other.descriptor, self.descriptor = self.descriptor, -1
        return other


def _may_open(held: _LockedFile, path: Path, *, is_last: bool) -> bool:
    """Look who owns it; false if one is to ask again, as others close it just now."""
    if held.take(fcntl.LOCK_EX):  # no process of this kernel has it open, if locks work
        record = _read(held.descriptor)
        is_over = held.works and _is_ours(record)
        if record and not is_over and record != _seen(path):
            _watch(held.path, record, path)
        return True
    if not held.take(fcntl.LOCK_SH):
        return False
    record = _read(held.descriptor)
    if record == _seen(path):
        return True
    if is_last or (record and not _is_ours(record)):
        raise _elsewhere(path, record)
    return False


def _open(held: _LockedFile, path: Path, connect: Callable[[], OwnedConnection]) -> OwnedConnection:
    opened = connect()
    try:
        record = _seen(path)
        if _read(held.descriptor) != record:
            _write(held.descriptor, record)
        held.take(fcntl.LOCK_SH)  # of others who open it the gate keeps all out
        opened.presence = Presence(held.kept(), record)
    except BaseException:
        opened.close()
        raise
    return opened


class Presence:
    """This process among those of its host that have the file open."""

    def __init__(self, held: _LockedFile, record: Record) -> None:
        self._held, self._record = held, record
        self._lost = False
        self._beaten_at = time.monotonic()
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._run, name="store-owner", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # at the limit of threads
            held.close()
            raise BlockingIOError(errno.EAGAIN, f"{error}") from error

    def is_lost(self) -> bool:
        """Whether another host took over; looks itself if this process was silent for long."""
        if not self._lost and time.monotonic() - self._beaten_at > LEASE_S - BEAT_S:
            self._beat()
        return self._lost

    def leave(self) -> None:
        """Give the file up; the last of this host leaves no record, if locks tell which it is."""
        self._left.set()
        if self._thread is not threading.current_thread():
            self._thread.join()
        with contextlib.suppress(OSError):
            is_last = self._held.take(fcntl.LOCK_EX) and self._held.works
            if is_last and not self._lost:
                _write(self._held.descriptor, {})
        self._held.close()

    def _run(self) -> None:
        while not self._left.wait(BEAT_S):
            with contextlib.suppress(OSError):  # of the volume; the lease runs out if it lasts
                self._beat()

    def _beat(self) -> None:
        # Opened again, as another host's writing shows then.
        with self._held.path.open("rb") as file:
            record = _read(file.fileno())
        if record and any(record.get(key) != self._record[key] for key in ("host", "file")):
            self._lost = True
            log.error("%s: taken over by host %s", self._held.path, record.get("name"))
            return
        os.utime(self._held.path)
        self._beaten_at = time.monotonic()


def _watch(owner: Path, record: Record, path: Path) -> None:
    """Return when the owner has been silent for LEASE_S by our clock; raises OpenElsewhere."""
    seen = owner.stat().st_mtime_ns
    until_s = time.monotonic() + LEASE_S
    log.info("Waiting up to %.0f s: is %s still open on %s?", LEASE_S, path, record.get("name"))
    while time.monotonic() < until_s:
        time.sleep(_PAUSE_S * 10)
        if owner.stat().st_mtime_ns != seen:
            raise _elsewhere(path, record)


def _elsewhere(path: Path, record: Record) -> OpenElsewhere:
    which = "another host"
    if _is_ours(record):
        which = "another host or in another container of this one"
    name = record.get("name", "unknown")
    return OpenElsewhere(f"{path} is open on {which} ({name}); a SQLite file is for one host")


def _is_ours(record: Record) -> bool:
    return bool(record.get("host") == this_host())


def _seen(path: Path) -> Record:
    """The record of this host: its files as processes here see them."""
    return {
        "host": this_host(),
        "name": platform.node(),
        "file": _inode(path),
        "index": _inode(Path(f"{path}-shm")),
    }


def _inode(path: Path) -> list[int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return [stat.st_dev, stat.st_ino]


def _write(descriptor: int, record: Record) -> None:
    """Replace the record at its length, so that a full disk has room for it once it was there."""
    os.pwrite(descriptor, json.dumps(record).encode().ljust(_BYTES), 0)


def _read(descriptor: int) -> Record:
    """The record in the file; empty where there is none."""
    try:
        record = json.loads(os.pread(descriptor, _BYTES, 0))
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}
