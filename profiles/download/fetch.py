"""Bring a model's files into a folder: whole, verified, by one process at a time.

A file is written beside the folder's own (`.partial/`), goes on there after a crash, and
gets its name only when its size and SHA-256 are right: whoever sees a name sees the file.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Protocol, TypeVar

from profiles.checkpoints.checkpoint import hash_file
from profiles.download.progress import Progress, Stopped, amount, num_files, speed
from profiles.download.source import Listing, NgcAccess, Source, Wanted
from profiles.download.verified import Verified
from profiles.errors import DownloadError, DownloadInterrupted

log = logging.getLogger(__name__)

_PARALLEL = 4  # files at a time; one connection seldom fills a data centre's line
_ATTEMPTS = 5  # of one file without a byte of progress
_FIRST_ATTEMPTS = 2  # of the first file: a source that cannot be reached is told soon
_PAUSE_S = 2.0  # before the second attempt; doubled for each one more
_REMEDY = (
    "What came is kept: start again to go on from there. Check the network (HTTPS_PROXY, "
    "SSL_CERT_FILE), name a mirror in NIM_REPOSITORY_OVERRIDE, or set NIM_MODEL_PATH to a folder "
    "that has the model."
)
_UNREACHED = (
    "Check the network (HTTPS_PROXY, SSL_CERT_FILE) and the address (HF_ENDPOINT, "
    "AWS_ENDPOINT_URL), or set NIM_MODEL_PATH to a folder that has the model."
)
_LEASE_S = 30.0  # an owner that has not been seen for so long is gone
_WAIT_TOLD_AFTER_S, _WAIT_TOLD_EVERY_S = 1.0, 30.0
_SPARE_BYTES = 64 << 20  # of disk, beside the files, at most
_KEEPING = threading.Lock()
GUEST: Final = NgcAccess()
File = TypeVar("File", bound=Wanted)


class Remote(Protocol):
    """A place that has the files."""

    def fetch(self, file: Wanted, part: Path, progress: Progress) -> None:
        """Append to `part` what it lacks of `file`.

        Raises DownloadInterrupted where trying again may help, DownloadError where it will not.
        """
        ...

    def listing(self) -> Listing:
        """Every file of the place, whether it is wanted or not; raises DownloadError."""
        ...


def open_remote(source: Source, ngc: NgcAccess) -> Remote:
    """Return the client for a source; its library is imported only now."""
    if source.scheme == "hf":
        from profiles.download.hub import Hub

        return Hub(source)
    if source.scheme == "ngc":
        from profiles.download.ngc import Ngc

        return Ngc(source, ngc)
    from profiles.download.mirror import Mirror

    return Mirror(source)


def list_files(source: Source, ngc: NgcAccess = GUEST) -> Listing:
    """Ask a place what it holds, twice if need be; raises DownloadError with the remedy."""
    remote, attempt = open_remote(source, ngc), 1
    while True:
        try:
            return remote.listing()
        except DownloadInterrupted as error:
            if attempt == _FIRST_ATTEMPTS:
                raise DownloadError(f"{error}\n{_UNREACHED}") from None
            attempt += 1
            log.warning("%s; trying again in %.0f s", error, _PAUSE_S)
            time.sleep(_PAUSE_S)


def missing(files: Iterable[File], folder: Path) -> list[File]:
    """The files that `folder` lacks, or has in another size."""
    return [file for file in files if _size(folder / file.name) != file.size_bytes]


def fetch(
    title: str,
    files: Sequence[Wanted],
    folder: Path,
    source: Source,
    ngc: NgcAccess = GUEST,
) -> None:
    """Fetch what `folder` lacks of `files`; raises DownloadError with the remedy.

    Waits where another process, also on another host, fetches into the same folder.
    """
    with _kept(title, folder), _owned(folder, title):
        if wanted := missing(files, folder):
            _fetch_all(title, wanted, folder, source, open_remote(source, ngc))
        shutil.rmtree(folder / ".partial", ignore_errors=True)


@contextmanager
def _kept(title: str, folder: Path) -> Iterator[None]:
    """Make the folder; say what to do where it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise DownloadError(
            f"{title} cannot be kept in {folder}: {error.strerror or error}; "
            "set NIM_CACHE_PATH to a folder that can be written, with room for the model"
        ) from error


def fetch_head(
    title: str,
    file: Wanted,
    num_bytes: int,
    folder: Path,
    source: Source,
    ngc: NgcAccess = GUEST,
) -> Path:
    """Fetch a file's first bytes, at least so many; return where they lie, for fetch() to go on.

    Raises DownloadError as fetch() does.
    """
    with _kept(title, folder), _owned(folder, title):
        if _size(folder / file.name) == file.size_bytes:
            return folder / file.name
        part = _part(folder, file)
        part.parent.mkdir(parents=True, exist_ok=True)
        needed = min(num_bytes, file.size_bytes) - (_size(part) or 0)
        if needed > 0:
            _check_room(title, needed, folder)
            with suppress(Stopped), _Head(title, needed) as progress:
                _fetch_part(file, part, open_remote(source, ngc), progress, _FIRST_ATTEMPTS)
        return part


class _Head(Progress):
    """Of so many bytes; then it is enough."""

    def __init__(self, title: str, num_bytes: int) -> None:
        super().__init__(title, num_bytes)
        self._num_wanted = num_bytes

    def add(self, num_bytes: int) -> None:
        super().add(num_bytes)
        self._num_wanted -= num_bytes
        if self._num_wanted <= 0:
            self.stop()  # at the next bytes: not every client has written these yet


def _fetch_all(
    title: str, wanted: Sequence[Wanted], folder: Path, source: Source, remote: Remote
) -> None:
    parts = {file: _part(folder, file) for file in wanted}
    have = sum(_size(part) or 0 for part in parts.values())
    total = sum(file.size_bytes for file in wanted)
    _check_room(title, total - have, folder)
    resumed = f", {amount(have)} of them are here already" if have else ""
    size = f"{num_files(len(wanted))}, {amount(total)}{resumed}"
    log.info("Fetching %s from %s: %s", title, source, size)
    began = time.monotonic()
    with Progress(title, total, have) as progress, ThreadPoolExecutor(_PARALLEL) as pool:
        # The smallest shows whether the source is there; then large ones first, so that none is
        # left to run alone at the end.
        *large, smallest = sorted(wanted, key=lambda file: -file.size_bytes)
        try:
            _bring(smallest, folder, remote, progress, _FIRST_ATTEMPTS)
            jobs = [pool.submit(_bring, file, folder, remote, progress) for file in large]
            for job in as_completed(jobs):
                job.result()
        except BaseException:  # Ctrl-C too: the threads end at their next bytes
            progress.stop()
            pool.shutdown(cancel_futures=True)
            raise
    seconds = max(time.monotonic() - began, 1e-3)
    log.info(
        "Fetched %s: %s in %.0f s (%s), %s",
        title,
        amount(total - have),
        seconds,
        speed((total - have) / seconds),
        _checked(wanted),
    )


def _checked(files: Iterable[Wanted]) -> str:
    """Say by what it is known that the files came whole."""
    unsummed = [file.name for file in files if file.sha256 is None]
    if not unsummed:
        return "every SHA-256 right"
    some = ", ".join(unsummed[:3]) + (", ..." if unsummed[3:] else "")
    return f"every size right, and every SHA-256 that is published: none is of {some}"


def _bring(
    file: Wanted,
    folder: Path,
    remote: Remote,
    progress: Progress,
    attempts: int = _ATTEMPTS,
) -> None:
    """Fetch one file, and give it its name when it is the published one."""
    part = _part(folder, file)
    part.parent.mkdir(parents=True, exist_ok=True)
    _fetch_part(file, part, remote, progress, attempts)
    if not _is_published(file, part):
        log.warning("%s came with a wrong checksum; fetching it anew", file.name)
        progress.add(-file.size_bytes)
        part.unlink()
        _fetch_part(file, part, remote, progress, attempts)
        if not _is_published(file, part):
            part.unlink()
            raise DownloadError(
                f"{file.name} came twice with another SHA-256 than the published {file.sha256}: "
                "the source holds another file; name another source (NIM_REPOSITORY_OVERRIDE, or "
                "NIM_MODEL_PATH where that named this one)"
            )
    target = folder / file.name
    target.parent.mkdir(parents=True, exist_ok=True)
    part.replace(target)
    with _KEEPING:  # a start need not hash it once more
        verified = Verified(folder)
        verified.add(file)
        verified.save()


def _fetch_part(
    file: Wanted, part: Path, remote: Remote, progress: Progress, attempts: int
) -> None:
    """Let `part` grow to the file's size, through interruptions."""
    attempt, size = 1, _size(part) or 0
    while (_size(part) or 0) < file.size_bytes:  # whole, if it was to be hashed when all ended
        try:
            remote.fetch(file, part, progress)
        except DownloadInterrupted as error:
            grown = _size(part) or 0
            attempt = attempt + 1 if grown <= size else 1
            size = grown
            if attempt > attempts:
                raise DownloadError(f"{error}\n{_REMEDY}") from None
            pause_s = _PAUSE_S * 2 ** max(attempt - 2, 0)
            log.warning("%s; trying again in %.0f s", error, pause_s)
            if progress.is_stopped.wait(pause_s):
                raise Stopped from None
        else:
            return


def _is_published(file: Wanted, part: Path) -> bool:
    if _size(part) != file.size_bytes:
        return False
    return file.sha256 is None or hash_file(part) == file.sha256


def _part(folder: Path, file: Wanted) -> Path:
    """Return the unfinished file, named by its checksum: another version begins anew."""
    version = file.sha256[:12] if file.sha256 else str(file.size_bytes)
    return folder / ".partial" / f"{file.name}.{version}"


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def _check_room(title: str, needed: int, folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    with_spare = needed + min(needed, _SPARE_BYTES)
    if free < with_spare:
        raise DownloadError(
            f"{title} needs {amount(with_spare)} of room in {folder}, where {amount(free)} are "
            "free; make room, or set NIM_CACHE_PATH to a folder on a larger disk"
        )


@contextmanager
def _owned(folder: Path, title: str) -> Iterator[None]:
    """Hold the folder's lease: one process fetches, the others wait and then find the files.

    A lease is refreshed while its owner lives, on file systems without locks too, and is
    taken over when it has not been for 30 s. Should an owner come back from the dead, the
    checksums still decide what is served.
    """
    from filelock import SoftFileLease, Timeout  # only who fetches waits for its import

    lost = threading.Event()
    lease = SoftFileLease(
        folder.parent / f".{folder.name}.lease",
        lease_duration=_LEASE_S,
        heartbeat_interval=_LEASE_S / 6,
        on_compromise=lambda _: lost.set(),
    )
    patience_s = _WAIT_TOLD_AFTER_S
    while True:
        try:
            lease.acquire(timeout=patience_s)
            break
        except Timeout:
            patience_s = _WAIT_TOLD_EVERY_S
            log.info("Another process fetches %s into %s; waiting for it", title, folder)
    try:
        yield
        if lost.is_set():
            raise DownloadError(
                f"another process took over fetching {title} into {folder}, because this one stood "
                "still for 30 s; start again"
            )
    finally:
        lease.release()
