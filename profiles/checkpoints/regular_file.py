"""Files that can be read to their end: no pipe, no device, nothing huge."""

from __future__ import annotations

import stat
from pathlib import Path

from profiles.errors import ModelStoreError


def check_file(path: Path, max_bytes: int | None = None) -> None:
    """Raise ModelStoreError for what reading could wait for, or never end: pipes, devices, and
    files above `max_bytes`."""
    try:
        found = path.stat()
    except OSError as error:
        raise ModelStoreError(f"{path} cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(found.st_mode):
        raise ModelStoreError(f"{path} is not a regular file")
    if max_bytes is not None and found.st_size > max_bytes:
        raise ModelStoreError(f"{path} has {found.st_size:,} bytes, at most {max_bytes:,} are read")


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """Read a whole file of at most `max_bytes`; raises ModelStoreError."""
    check_file(path, max_bytes)
    try:
        with path.open("rb") as file:
            return file.read(max_bytes)
    except OSError as error:
        raise ModelStoreError(f"{path} cannot be read: {error.strerror}") from None
