"""flock(2) where a volume has it, and a lease where it has none or it ends at this host."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Final

from profiles.volume.kinds import shared_type
from profiles.volume.lease import leased

# Of a file system without locks: some in user space, Lustre without `-o flock`.
_NO_LOCKS: Final = frozenset({errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL})

log = logging.getLogger(__name__)


def try_lock(descriptor: int, kind: int, path: Path, instead: str) -> bool:
    """Lock the open file `path`; false where locks do not work there, which is logged once.

    `instead`: what is done then, for the log. Raises BlockingIOError where another process has it.
    """
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError as error:
        if not tell_no_lock(error, path, instead):
            raise
        return False
    return True


def tell_no_lock(error: OSError, path: Path, instead: str) -> bool:
    """Whether the error means that locks do not work on the volume; the log says why, once."""
    if error.errno == errno.ENOLCK:
        _tell_lock_service(path.parent, instead)
    elif error.errno in _NO_LOCKS:
        _tell_none(path.parent, instead)
    else:
        return False
    return True


@cache
def _tell_lock_service(folder: Path, instead: str) -> None:
    log.warning(
        "The volume of %s has locks, but its lock service does not answer (ENOLCK); %s. Start "
        "rpc.statd and open lockd's ports, or mount it with NFS 4, which needs neither.",
        folder,
        instead,
    )


@cache
def _tell_none(folder: Path, instead: str) -> None:
    log.info("The volume of %s has no locks; %s.", folder, instead)


@contextmanager
def alone(file: Path, title: str) -> Iterator[None]:
    """Let one process at a time into the block, of all hosts that use the volume.

    `file`: made for this, or a folder that is there. The kernel gives a lock back however its owner
    ends. Where it does not work, or may end at this host, writers of all hosts take turns by a
    lease as well. Raises OSError where the file cannot be written.
    """
    with locked(file, fcntl.LOCK_EX, title) as has_lock:
        if has_lock and shared_type(file) is None:
            yield
            return
        with leased(
            file / ".harmonium.lease" if file.is_dir() else file.with_name(f"{file.name}.lease"),
            lambda: log.info("Another process has %s; waiting for it ...", title),
        ):
            yield


@contextmanager
def locked(file: Path, kind: int, title: str) -> Iterator[bool]:
    """Hold the file's lock, shared or alone; yields false where locks do not work there."""
    # Over NFS a lock that excludes others needs a file that is open for writing.
    flags = os.O_RDONLY if file.is_dir() else os.O_CREAT | os.O_RDWR
    descriptor = os.open(file, flags | os.O_CLOEXEC, 0o666)
    try:
        yield _wait_for(descriptor, kind, file, title)
    finally:
        os.close(descriptor)


def _wait_for(descriptor: int, kind: int, file: Path, title: str) -> bool:
    try:
        return try_lock(descriptor, kind, file, "a lease is used")
    except BlockingIOError:
        log.info("Another process has %s; waiting for it ...", title)
        fcntl.flock(descriptor, kind)
        return True
