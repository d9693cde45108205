"""A small disk of one server alone, which a test fills and empties while the server runs.

It is mounted in a mount namespace of the server's own, so nothing is left behind when a test ends,
however it ends, and no other process sees it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

BYTES = 4 << 20
NUM_FILES = 200
# Arguments: bytes, files, folder, where its output goes (empty: as ours), and the program.
_MOUNT = """
mount -t tmpfs -o "size=$1,nr_inodes=$2" tmpfs "$3" || exit
test -z "$4" || exec >>"$4" 2>&1
shift 4
exec "$@"
"""


def namespace() -> list[str]:
    """The command that runs another in a mount namespace of its own."""
    return ["unshare", "--mount" if os.geteuid() == 0 else "-rm"]


@cache
def why_not() -> str:
    """Why no disk can be mounted here; empty if one can."""
    try:
        done = subprocess.run(
            [*namespace(), "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, text=True
        )
    except FileNotFoundError as error:
        return f"there is no {error.filename}"
    return done.stderr.strip() if done.returncode else ""


class SmallDisk:
    """A disk at a folder, as the server sees it from its start."""

    def __init__(self, folder: Path, *, num_bytes: int = BYTES, has_log: bool = False) -> None:
        self._folder = folder
        log = str(folder / "log.txt") if has_log else ""
        arguments = ["mount", str(num_bytes), str(NUM_FILES), str(folder), log]
        self.command = [*namespace(), "sh", "-c", _MOUNT, *arguments]
        self.pid = 0  # of the server, once it runs

    @property
    def path(self) -> Path:
        """The folder as seen from here."""
        return Path(f"/proc/{self.pid}/root{self._folder}")

    def fill(self) -> None:
        fill(self.path)

    def empty(self) -> None:
        empty(self.path)

    def check_full(self) -> None:
        stats = os.statvfs(self.path)
        assert (stats.f_bavail, stats.f_favail) == (0, 0)


def fill(folder: Path) -> None:
    """Leave no room for a byte on its disk, and none for an empty file."""
    with (folder / "fill").open("wb", buffering=0) as file, _until_full():
        while True:
            file.write(bytes(4096))
    with _until_full():
        for number in range(2 * NUM_FILES):
            (folder / f"fill-{number}").touch()


def empty(folder: Path) -> None:
    """Make room again."""
    for path in folder.glob("fill*"):
        path.unlink()


@contextlib.contextmanager
def _until_full() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
