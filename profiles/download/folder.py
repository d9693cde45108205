"""The folder that a model's files are written to: can be written, has room, and holds them all."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from profiles.download.progress import amount
from profiles.download.source import FileToFetch
from profiles.errors import DownloadError

UNFINISHED = ".partial"
_SPARE_BYTES = 64 << 20  # of disk, beside the files, at most


def check_inside(folder: Path, files: Iterable[FileToFetch]) -> None:
    """Raise DownloadError if a file, or what is there of it, would be written elsewhere.

    What a file replaces may be a link: it is replaced itself, and not what it leads to.
    """
    real = folder.resolve()
    for file in files:
        for path in (folder / file.name, folder / UNFINISHED / file.name):
            if not (parent := path.parent.resolve()).is_relative_to(real):
                raise DownloadError(
                    f"{path} would be written to {parent}, outside {folder}: a folder in there is "
                    "a link; replace it by a plain folder"
                )


@contextmanager
def kept(title: str, folder: Path) -> Iterator[None]:
    """Create the folder; raises an error with the remedy if it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise DownloadError(
            f"{title} cannot be kept in {folder}: {error.strerror or error}; "
            "set NIM_CACHE_PATH to a writable folder with room for the model"
        ) from error


def check_room(title: str, needed: int, folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    with_spare = needed + min(needed, _SPARE_BYTES)
    if free < with_spare:
        raise DownloadError(
            f"{title} needs {amount(with_spare)} in {folder}, and {amount(free)} are free; free "
            f"disk space, or set NIM_CACHE_PATH to a folder on a larger disk"
        )
