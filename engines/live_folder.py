"""Temporary folders that are removed when their owner ends, even if no process was left to do it.

An owner holds a lock on its folder for as long as it lives: flock(2), which the kernel gives back
however a process ends. A process that makes such a folder first removes those without an owner, so
a server that was killed with all its processes leaves nothing beyond the next start. On a volume
that other hosts may open, where a lock may end at its host, only this host's own are removed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from profiles.volume.host import this_host
from profiles.volume.kinds import shared_type
from profiles.volume.locks import tell_no_lock

_PREFIX: Final = "harmonium-live-"
_HIDDEN: Final = f".{_PREFIX}"  # until it is locked
_TRIES: Final = 10


class LiveFolder:
    """A folder below TMPDIR that no other user can open, from make() to remove()."""

    def __init__(self, parent: Path | None = None) -> None:
        """`parent`: where it is instead."""
        parent = parent or Path(tempfile.gettempdir())
        self._mark = "" if shared_type(parent) is None else f"{_host_mark()}-"
        self.path = parent / f"{_PREFIX}{self._mark}{secrets.token_hex(4)}"
        self._lock: int | None = None

    def make(self) -> None:
        """Sweep up after others and make it; raises OSError where it cannot be made.

        A sweep may remove a folder before its lock: one that does not have its name yet.
        """
        _sweep(self.path.parent, self._mark)
        for _ in range(_TRIES):
            unlocked = self.path.with_name(f"{_HIDDEN}{self._mark}{secrets.token_hex(4)}")
            unlocked.mkdir(mode=0o700)
            try:
                self._lock = _locked(unlocked)
                unlocked.rename(self.path)
            except (FileNotFoundError, BlockingIOError):
                self._unlock()
            else:
                return
        raise FileNotFoundError(f"{unlocked}: was removed {_TRIES} times while it was made")

    def remove(self) -> None:
        """Remove it with all that is in it; it may be gone already."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


@contextmanager
def live_folder(parent: Path | None = None) -> Iterator[Path]:
    """A folder for a block; what a killed process leaves goes at the next start of any server."""
    folder = LiveFolder(parent)
    folder.make()
    try:
        yield folder.path
    finally:
        folder.remove()


def _host_mark() -> str:
    return hashlib.sha256(this_host().encode()).hexdigest()[:6]  # a socket's path has no room


def _sweep(parent: Path, mark: str) -> None:
    """Remove this user's folders of this mark that no process has locked."""
    for path in (*parent.glob(f"{_PREFIX}{mark}*"), *parent.glob(f"{_HIDDEN}{mark}*")):
        try:
            if path.lstat().st_uid != os.getuid():
                continue
            lock = _locked(path, must_lock=True)
        except OSError:  # its owner lives, or has just removed it; or locks are not available there
            continue
        try:
            shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(lock)


def _locked(folder: Path, *, must_lock: bool = False) -> int:
    """Open a folder and lock it; raises BlockingIOError where another process has locked it.

    Where locks do not work it is used without one, and stays when its owner is killed.
    """
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if must_lock or isinstance(error, BlockingIOError):
            os.close(opened)
            raise
        tell_no_lock(error, folder, "what a killed server leaves there stays")
    return opened
