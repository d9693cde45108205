"""Bring a model's files into a folder: whole, verified, by one process at a time.

A file is written beside the folder's own (`.partial/`), continues there after a crash, and gets
its name only when its size and SHA-256 are right: a file with its name is complete.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeVar

from profiles.checkpoints.checkpoint import hash_file
from profiles.download import pieces
from profiles.download.folder import UNFINISHED, check_inside, check_room, kept
from profiles.download.pieces import FilePiece, NoRanges, UnfinishedFile
from profiles.download.progress import Progress, Stopped, amount, num_files, speed
from profiles.download.source import FileToFetch, Listing, NgcAccess, Source
from profiles.download.verified import Verified
from profiles.errors import DownloadError, DownloadInterrupted, WrongBytes
from profiles.volume.lease import LEASE_S, leased

log = logging.getLogger(__name__)

_PARALLEL = 4  # files at a time; one connection seldom fills a data centre's line
_CONNECTIONS = 16  # of all files together, where they are large
_ATTEMPTS = 5  # of one file without a byte of progress
_FIRST_ATTEMPTS = 2  # of the first file: a source that cannot be reached is reported soon
_PAUSE_S = 2.0  # before the second attempt; doubled for each one more
_REMEDY = (
    "The downloaded part is kept; start again to continue. Check the network (HTTPS_PROXY, "
    "SSL_CERT_FILE), name a mirror in NIM_REPOSITORY_OVERRIDE, or set NIM_MODEL_PATH to a folder "
    "that has the model."
)
_UNREACHED = (
    "Check the network (HTTPS_PROXY, SSL_CERT_FILE) and the address (HF_ENDPOINT, "
    "AWS_ENDPOINT_URL), or set NIM_MODEL_PATH to a folder that has the model."
)
_KEEPING = threading.Lock()
GUEST: Final = NgcAccess()
File = TypeVar("File", bound=FileToFetch)


class Remote(Protocol):
    """A place that has the files."""

    def fetch(self, file: FileToFetch, piece: FilePiece, progress: Progress) -> None:
        """Write to the piece what it lacks of `file`.

        Raises DownloadInterrupted where trying again may help, DownloadError where it will not, and
        NoRanges where the source sends whole files only.
        """

    def listing(self) -> Listing:
        """Every file of the place, whether it is wanted or not; raises DownloadError."""


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
    """List a source's files, with one retry; raises DownloadError with the remedy."""
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
    title: str, files: Sequence[FileToFetch], folder: Path, source: Source, ngc: NgcAccess = GUEST
) -> None:
    """Fetch what `folder` lacks of `files`; raises DownloadError with the remedy.

    Waits where another process, also on another host, fetches into the same folder.
    """
    with kept(title, folder), _owned(folder, title):
        check_inside(folder, files)
        if wanted := missing(files, folder):
            _fetch_all(title, wanted, folder, source, open_remote(source, ngc))
        shutil.rmtree(folder / UNFINISHED, ignore_errors=True)


def fetch_head(
    title: str,
    file: FileToFetch,
    num_bytes: int,
    folder: Path,
    source: Source,
    ngc: NgcAccess = GUEST,
) -> Path:
    """Fetch the first bytes of a file, at least this number; return where they are, for fetch() to
    continue.

    Raises DownloadError as fetch() does.
    """
    with kept(title, folder), _owned(folder, title):
        check_inside(folder, [file])
        if _size(folder / file.name) == file.size_bytes:
            return folder / file.name
        part = _part(folder, file)
        part.parent.mkdir(parents=True, exist_ok=True)
        parts = UnfinishedFile(part, file.size_bytes)
        try:
            first = parts.pieces[0]
            needed = min(num_bytes, file.size_bytes) - first.done
            if needed > 0:
                check_room(title, needed, folder)
                remote = open_remote(source, ngc)
                with suppress(Stopped), _Head(title, needed) as progress, _discarding(part):
                    try:
                        _fetch_piece(file, first, remote, progress, _FIRST_ATTEMPTS)
                    except NoRanges:
                        _fetch_whole(file, parts, remote, progress, _FIRST_ATTEMPTS)
        finally:
            parts.close()
        return part


class _Head(Progress):
    """Stop after that many bytes."""

    def __init__(self, title: str, num_bytes: int) -> None:
        super().__init__(title, num_bytes)
        self._num_wanted = num_bytes

    def add(self, num_bytes: int) -> None:
        super().add(num_bytes)
        self._num_wanted -= num_bytes
        if self._num_wanted <= 0:
            self.stop()  # at the next bytes: not every client has written these yet


def _fetch_all(
    title: str, wanted: Sequence[FileToFetch], folder: Path, source: Source, remote: Remote
) -> None:
    parts = {file: _part(folder, file) for file in wanted}
    have = sum(pieces.have_bytes(part, file.size_bytes) for file, part in parts.items())
    total = sum(file.size_bytes for file in wanted)
    check_room(title, total - have, folder)
    resumed = f", {amount(have)} of them downloaded already" if have else ""
    size = f"{num_files(len(wanted))}, {amount(total)}{resumed}"
    log.info("Fetching %s from %s: %s", title, source, size)
    began = time.monotonic()
    with Progress(title, total, have) as progress, ThreadPoolExecutor(_PARALLEL) as pool:
        # The smallest shows whether the source is there; then large ones first, so that none is
        # left to run alone at the end.
        *large, smallest = sorted(wanted, key=lambda file: -file.size_bytes)
        try:
            beside = 1 if large else _CONNECTIONS
            _bring(smallest, folder, remote, progress, beside, _FIRST_ATTEMPTS)
            beside = max(_CONNECTIONS // max(min(len(large), _PARALLEL), 1), 1)
            bring = partial(_bring, folder=folder, remote=remote, progress=progress, beside=beside)
            jobs = [pool.submit(bring, file) for file in large]
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


def _checked(files: Iterable[FileToFetch]) -> str:
    unsummed = [file.name for file in files if file.sha256 is None]
    if not unsummed:
        return "every SHA-256 right"
    some = ", ".join(unsummed[:3]) + (", ..." if unsummed[3:] else "")
    return f"all sizes and all published SHA-256 match (none is published for {some})"


def _bring(
    file: FileToFetch,
    folder: Path,
    remote: Remote,
    progress: Progress,
    beside: int,
    attempts: int = _ATTEMPTS,
) -> None:
    """Fetch one file, and give it its name when it is the published one.

    `beside`: number of pieces at a time.
    """
    part = _part(folder, file)
    part.parent.mkdir(parents=True, exist_ok=True)
    with _discarding(part):
        _fetch_parts(file, part, remote, progress, beside, attempts)
    if not _is_published(file, part):
        log.warning("%s has a wrong checksum; downloading it again", file.name)
        progress.add(-file.size_bytes)
        pieces.remove(part)
        with _discarding(part):
            _fetch_parts(file, part, remote, progress, beside, attempts)
        if not _is_published(file, part):
            pieces.remove(part)
            raise DownloadError(
                f"{file.name} was downloaded twice with another SHA-256 than the published "
                f"{file.sha256}: the source has a different file; name another source "
                f"(NIM_REPOSITORY_OVERRIDE, or "
                "NIM_MODEL_PATH where that named this one)"
            )
    target = folder / file.name
    target.parent.mkdir(parents=True, exist_ok=True)
    check_inside(folder, [file])  # no link has come there meanwhile
    part.replace(target)
    with _KEEPING:  # a start need not hash it once more
        verified = Verified(folder)
        verified.add(file)
        verified.save()


def _fetch_parts(
    file: FileToFetch, part: Path, remote: Remote, progress: Progress, beside: int, attempts: int
) -> None:
    """Let `part` grow to the file's size: a large one in pieces side by side."""
    parts = UnfinishedFile(part, file.size_bytes)
    try:
        try:
            _fetch_beside(file, parts, remote, progress, beside, attempts)
        except NoRanges:
            log.info("%s comes by one connection: the source sends whole files only", file.name)
            _fetch_whole(file, parts, remote, progress, attempts)
    finally:
        parts.close()


def _fetch_whole(
    file: FileToFetch, parts: UnfinishedFile, remote: Remote, progress: Progress, attempts: int
) -> None:
    """Download a file from its beginning, and again each time that the connection breaks."""
    progress.add(-sum(piece.done for piece in parts.pieces))
    whole = parts.unite()
    whole.restart()
    for _ in range(attempts):
        try:
            return _fetch_piece(file, whole, remote, progress, attempts)
        except NoRanges:
            progress.add(-whole.restart())
    raise DownloadError(
        f"{file.name}: the connection broke {attempts} times, and the source sends whole files "
        f"only\n{_REMEDY}"
    )


@contextmanager
def _discarding(part: Path) -> Iterator[None]:
    """Keep nothing of a file of which the source sent something else."""
    try:
        yield
    except WrongBytes:
        pieces.remove(part)
        raise


def _fetch_beside(
    file: FileToFetch,
    parts: UnfinishedFile,
    remote: Remote,
    progress: Progress,
    beside: int,
    attempts: int,
) -> None:
    lacking = parts.begin()
    if len(lacking) < 2:
        for piece in lacking:
            _fetch_piece(file, piece, remote, progress, attempts)
        return
    with ThreadPoolExecutor(beside) as pool:
        jobs = [
            pool.submit(_fetch_piece, file, piece, remote, progress, attempts) for piece in lacking
        ]
        try:
            for job in as_completed(jobs):
                job.result()
        except BaseException:
            parts.is_cancelled.set()
            pool.shutdown(cancel_futures=True)
            parts.is_cancelled.clear()
            raise


def _fetch_piece(
    file: FileToFetch, piece: FilePiece, remote: Remote, progress: Progress, attempts: int
) -> None:
    """Download the rest of the piece, through interruptions."""
    attempt, done = 1, piece.done
    while piece.left:
        try:
            remote.fetch(file, piece, progress)
            if piece.left:  # it did not break: asking often will not help
                attempts = min(attempts, _FIRST_ATTEMPTS)
                raise DownloadInterrupted(f"{file.name}: the source ended it too early")
        except DownloadInterrupted as error:
            attempt = attempt + 1 if piece.done <= done else 1
            done = piece.done
            if attempt > attempts:
                raise DownloadError(f"{error}\n{_REMEDY}") from None
            pause_s = max(_PAUSE_S * 2 ** max(attempt - 2, 0), error.wait_s)
            log.warning("%s; trying again in %.0f s", error, pause_s)
            if progress.is_stopped.wait(pause_s):
                raise Stopped from None


def _is_published(file: FileToFetch, part: Path) -> bool:
    if _size(part) != file.size_bytes:
        return False
    return file.sha256 is None or hash_file(part) == file.sha256


def _part(folder: Path, file: FileToFetch) -> Path:
    """Return the unfinished file, named by its checksum: another version starts from the
    beginning."""
    version = file.sha256[:12] if file.sha256 else str(file.size_bytes)
    return folder / UNFINISHED / f"{file.name}.{version}"


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return None


@contextmanager
def _owned(folder: Path, title: str) -> Iterator[None]:
    """Hold the folder's lease: one process of all hosts fetches, the others wait and then find the
    files.

    Should an owner come back from the dead, the checksums still decide what is served.
    """
    with leased(
        folder.parent / f".{folder.name}.lease",
        lambda: log.info("Another process fetches %s into %s; waiting for it", title, folder),
    ) as lost:
        yield
        if lost.is_set():
            raise DownloadError(
                f"another process took over downloading {title} into {folder}, because this one "
                f"made no progress for {LEASE_S:.0f} s; start again"
            )
