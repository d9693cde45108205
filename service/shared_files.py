"""Files that the API workers of one server map together, every block of them reserved.

A mapped page that has no block on the disk gets one when it is first written. If the disk is full
by then, SIGBUS ends the process, where a write() would have raised OSError. So nothing is mapped,
and no mapped file grows, before its room is reserved.

The files are memory (memfd) where the system has that: no disk can be too full for them. The parent
makes them, and its workers inherit them. The folder has a link to each, `/proc/self/fd/<number>`,
which names the same file in each of these processes, so that libraries can open it by its path.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from engines.fleet import MAX_BLOCKS
from engines.shared_routes import size_of

CONNECTIONS: Final = "connections"
CONNECTION_BYTES: Final = 4  # of each worker
ROUTES: Final = "routes"
LIMITS: Final = "limits"
LIMIT_BYTES: Final = 4 << 20
COUNT_KINDS: Final = ("counter", "histogram")  # prometheus_client has a file for each
COUNT_BYTES: Final = 1 << 16  # of each file at first; twice as many whenever it is full
_ZEROS: Final = bytes(1 << 16)


def reserve(descriptor: int, size: int) -> None:
    """Give a file this size and the blocks for it; raises OSError where there is no room."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
        return
    present = os.fstat(descriptor).st_size
    while present < size:
        present += os.pwrite(descriptor, _ZEROS[: size - present], present)


class SharedFiles:
    """The files of one server's workers, in a folder; made by their parent."""

    def __init__(self, folder: Path, num_workers: int, num_engines: int = 1) -> None:
        """Raises OSError where there is no room for them."""
        self._descriptors: list[int] = []
        try:
            for name, size in _sizes(num_workers, num_engines).items():
                self._make(folder / name, size)
        except OSError:
            self.close()
            raise

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What the workers must inherit, under the same numbers."""
        return tuple(self._descriptors)

    def close(self) -> None:
        """Let go of them; may be called twice."""
        while self._descriptors:
            os.close(self._descriptors.pop())

    def _make(self, path: Path, size: int) -> None:
        descriptor = _memory(path.name)
        if descriptor is None:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            self._descriptors.append(descriptor)
        else:
            self._descriptors.append(descriptor)
            path.symlink_to(_link(descriptor))
        reserve(descriptor, size)


def count_file(kind: str, worker: int) -> str:
    """The name of a worker's file of counts, as prometheus_client forms it."""
    return f"{kind}_{worker}.db"


def mapped(folder: Path, name: str) -> mmap.mmap:
    """A whole file of them, in a worker."""
    descriptor = os.open(folder / name, os.O_RDWR)
    try:
        return mmap.mmap(descriptor, 0)
    finally:
        os.close(descriptor)


def _sizes(num_workers: int, num_engines: int) -> Mapping[str, int]:
    counts = {
        count_file(kind, worker): COUNT_BYTES
        for kind in COUNT_KINDS
        for worker in range(num_workers)
    }
    return {
        CONNECTIONS: num_workers * CONNECTION_BYTES,
        ROUTES: size_of(MAX_BLOCKS, num_engines) if num_engines > 1 else 8,
        LIMITS: LIMIT_BYTES,
        **counts,
    }


def _memory(name: str) -> int | None:
    """A file in memory; None where the system has none, or no path to it."""
    if not hasattr(os, "memfd_create"):
        return None
    try:
        descriptor = os.memfd_create(f"harmonium-{name}")
    except OSError:  # forbidden to this container
        return None
    if os.path.exists(_link(descriptor)):
        return descriptor
    os.close(descriptor)
    return None


def _link(descriptor: int) -> str:
    return f"/proc/self/fd/{descriptor}"
