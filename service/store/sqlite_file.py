"""The file under the embedded store: for its owner's eyes alone."""

from __future__ import annotations

import logging
import os
import sqlite3
from pathlib import Path
from typing import Final

from service.store.owner import OwnedConnection, check_volume, open_owned

log = logging.getLogger(__name__)

BUSY_TIMEOUT_S: Final = 2.0  # for another process to end its transaction
MEMORY: Final = ":memory:"
_PARTS: Final = ("", "-wal", "-shm", "-owner")
_SCHEMA: Final = "CREATE TABLE IF NOT EXISTS clock (wall REAL NOT NULL, age REAL NOT NULL);"


def open_database(path: Path | None) -> OwnedConnection:
    """Open a database; in memory when there is no path.

    Raises OpenElsewhere for a file that another host has open, or may; sqlite3.Error and OSError.
    """
    if path is None:
        return _connected(MEMORY)
    check_volume(path)
    make_private(path)
    return open_owned(path, lambda: _connected(path))


def _connected(path: Path | str) -> OwnedConnection:
    opened = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, factory=OwnedConnection)
    try:
        opened.execute("PRAGMA journal_mode = WAL")
        opened.execute("PRAGMA synchronous = NORMAL")
        opened.executescript(_SCHEMA)
    except sqlite3.Error:
        opened.close()
        raise
    return opened


def make_private(path: Path) -> None:
    """Let only its owner read the file, whatever it was before; raises OSError.

    A folder that is missing is made as 0700; one that is there is left as it is, because it may
    hold other things.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    for part in _PARTS:
        tighten(Path(f"{path}{part}"), 0o600)


def tighten(path: Path, mode: int) -> None:
    """Take permissions that the mode does not allow from a file or folder that is there."""
    if path.exists() and path.stat().st_mode & 0o777 & ~mode:
        path.chmod(mode)
        log.warning(
            "Other users could read %s, which contains prompts and answers; mode set to %o",
            path,
            mode,
        )


def move(old: Path, new: Path) -> None:
    """Move a database with all its parts to another place; raises OSError."""
    for part in _PARTS:
        if (source := Path(f"{old}{part}")).exists():
            source.rename(f"{new}{part}")
