"""Which folders a start may use: the cache, and one for temporary files."""

from __future__ import annotations

import atexit
import logging
import os
import tempfile
from functools import cache
from pathlib import Path

from engines.live_folder import LiveFolder
from profiles.errors import ModelStoreError
from service.settings.settings import Settings

log = logging.getLogger(__name__)
_cache_of: dict[Path, Path] = {}  # a temporary cache of this process: the one that it replaces


class NoTemporaryFolder(Exception):
    """No folder for temporary files can be written; the message has the remedy."""


def check_temporary() -> None:
    """Raise NoTemporaryFolder where sockets and shared counters would have no place."""
    try:
        tempfile.gettempdir()
    except OSError:
        raise NoTemporaryFolder(
            "No folder for temporary files can be written: mount /tmp (docker run --tmpfs /tmp), "
            "or set TMPDIR to a writable folder."
        ) from None


def check_readable(folder: Path) -> None:
    """Raise ModelStoreError for a cache folder that this user may not open."""
    try:
        is_there = folder.is_dir()
        may_open = not is_there or os.access(folder, os.R_OK | os.X_OK, effective_ids=True)
    except OSError:  # a folder above it is closed
        may_open = False
    if not may_open:
        user = f"user {os.geteuid()}, group {os.getegid()}"
        raise ModelStoreError(
            f"The model cache {folder} cannot be read by {user}; give that user the folder, or set "
            "NIM_CACHE_PATH to another"
        )


def with_cache(settings: Settings) -> Settings:
    """Return the settings, with a temporary cache where this user cannot make or open theirs."""
    folder = settings.cache_path
    try:
        may_open = folder.is_dir() and os.access(folder, os.R_OK | os.X_OK, effective_ids=True)
        is_usable = may_open or (not folder.exists() and can_be_made(folder))
    except OSError:  # a folder above it is closed
        is_usable = False
    if is_usable:
        return settings
    temporary = _temporary()
    log.warning(
        "%s (NIM_CACHE_PATH) cannot be used by user %d, group %d. What would be kept there is in "
        "%s until the server stops.",
        folder,
        os.geteuid(),
        os.getegid(),
        temporary,
    )
    _cache_of[temporary] = folder
    return settings.model_copy(update={"cache_path": temporary})


def named_cache(folder: Path) -> Path:
    """The cache that the settings name, where a temporary one replaces it."""
    return _cache_of.get(folder, folder)


def can_be_made(folder: Path) -> bool:
    """Whether this user can write to the folder, or make it."""
    there = folder
    try:
        while not there.exists():
            there = there.parent
        return there.is_dir() and os.access(there, os.W_OK | os.X_OK, effective_ids=True)
    except OSError:  # a folder above it is closed
        return False


@cache
def writable(folder: Path) -> Path:
    """Return the cache folder, or a temporary one of this process where that is read-only.

    A folder that is not there is returned as it is: the author of to it says what is wrong.
    """
    if not folder.is_dir() or os.access(folder, os.W_OK):
        return folder
    log.warning(
        "%s cannot be written by user %d, group %d: nothing is downloaded. Compiled kernels, "
        "stored responses and the vocabulary are created again at each start.",
        folder,
        os.geteuid(),
        os.getegid(),
    )
    return _temporary()


def _temporary() -> Path:
    folder = LiveFolder()
    folder.make()
    atexit.register(folder.remove)
    return folder.path
