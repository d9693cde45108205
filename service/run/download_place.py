"""Whether a download has a place to go, asked before anything long begins."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from profiles.download.folder import UNFINISHED
from profiles.download.progress import amount
from profiles.download.source import FileToFetch
from profiles.errors import ModelStoreError
from service.run.scratch import can_be_made, named_cache

_SPARE_BYTES: Final = 64 << 20
_BLOCK_BYTES: Final = 512  # of st_blocks


def check_place(model: str, files: Sequence[FileToFetch], folder: Path, cache: Path) -> None:
    """Raise ModelStoreError, with a command that works, where the files cannot be kept.

    `folder`: of the model; `cache`: in which it usually is.
    """
    if not files:
        return
    wanted = sum(file.size_bytes for file in files)
    lacking = wanted - _num_bytes_of(folder / UNFINISHED) + _SPARE_BYTES
    named = named_cache(cache)
    if named != cache or not can_be_made(folder):
        place = folder if named == cache else named
        fault = f"{place} cannot be written by user {os.geteuid()}, group {os.getegid()}"
    elif (free := free_bytes(folder)) < lacking:
        fault = f"{folder} has {amount(free)} free of the {amount(lacking)} that are missing"
    else:
        return
    other = next((each for each in _others() if free_bytes(each) >= lacking), None)
    place = other if other is not None else Path("FOLDER")
    room = "" if other is not None else f" with a folder on a disk with {amount(lacking)} free"
    raise ModelStoreError(
        f"{model} has to be downloaded ({amount(wanted)}), and {fault}. "
        f"Try `harmonium serve {model} --cache-path {place}`{room}."
    )


def _others() -> Iterator[Path]:
    for folder in (Path.cwd(), Path(tempfile.gettempdir())):
        if can_be_made(folder / "harmonium-cache"):
            yield folder / "harmonium-cache"


def free_bytes(folder: Path) -> int:
    """What the disk has free of a folder that need not be there yet."""
    there = folder
    while not there.exists():
        there = there.parent
    return shutil.disk_usage(there).free


def _num_bytes_of(folder: Path) -> int:
    """What is on the disk there: of a download that was stopped, or that another process does."""
    files = (path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else ()
    return sum(path.stat().st_blocks * _BLOCK_BYTES for path in files)
