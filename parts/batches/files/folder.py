"""The folder of what files hold. Everything here blocks: it is called in threads.

A name is never used twice, and a file is complete before a store knows its name. What no store
knows, because a process died in between, goes when it is older than any file may get.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

from parts.batches.store.base import StorageFull

MAX_AGE_S: Final = 30 * 24 * 3600  # of a file
_KEPT_S: Final = MAX_AGE_S + 2 * 24 * 3600
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)

R = TypeVar("R")


class FilesFolder:
    """One folder, which several servers may share; made at its first use."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.swept_at_s = -math.inf  # when this process last looked for what is over

    def of(self, name: str) -> Path:
        return self.path / name

    def create(self, name: str) -> BinaryIO:
        """Open a new file; raises OSError, and StorageFull for a full disk."""
        return unless_full(lambda: self._create(name))

    def _create(self, name: str) -> BinaryIO:
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(
            self.of(name), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
        )
        return os.fdopen(descriptor, "r+b", buffering=0)

    def complete(self, file: BinaryIO) -> int:
        """Have the disk keep what was written, also when the power fails; returns the bytes."""
        unless_full(lambda: os.fsync(file.fileno()))
        folder = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return os.fstat(file.fileno()).st_size

    def remove(self, *names: str) -> None:
        for name in names:
            with contextlib.suppress(OSError):
                self.of(name).unlink()

    def rename(self, old: str, new: str) -> None:
        """Give a file another name, if there is one."""
        with contextlib.suppress(FileNotFoundError):
            self.of(old).replace(self.of(new))

    def named(self, beginning: str) -> list[str]:
        """The files whose names begin so."""
        try:
            return sorted(name for name in os.listdir(self.path) if name.startswith(beginning))
        except FileNotFoundError:
            return []

    def remove_forgotten(self) -> None:
        """Remove what is older than any file that a store knows."""
        oldest = time.time() - _KEPT_S
        for name in self.named(""):
            with contextlib.suppress(OSError):
                if self.of(name).stat().st_mtime < oldest:
                    self.of(name).unlink()


def unless_full(work: Callable[[], R]) -> R:
    """Do work with the disk; raises StorageFull where there is no room on it."""
    try:
        return work()
    except OSError as error:
        if error.errno in _FULL:
            raise StorageFull from error
        raise


def append(file: BinaryIO, pieces: Sequence[bytes]) -> int:
    """Write all or nothing at the end; returns the size. Raises OSError and StorageFull."""
    end = file.seek(0, os.SEEK_END)
    data = memoryview(b"".join(pieces))
    try:
        while data:
            data = data[file.write(data) :]
    except OSError as error:
        file.truncate(end)
        if error.errno in _FULL:
            raise StorageFull from error
        raise
    return file.tell()
