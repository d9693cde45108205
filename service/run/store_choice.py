"""Which store the settings ask for."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

from service.settings.settings import Settings
from service.store import sqlite_file
from service.store.base import Bounds, ResponseStore, StoreError
from service.store.sqlite import SqliteStore

log = logging.getLogger(__name__)

FILE_NAME = "responses.sqlite"
FOLDER_NAME = "responses"  # in the cache, and nobody else's: the cache itself may be shared


def store_of(settings: Settings) -> ResponseStore:
    """Redis, the file that was named, or one in the cache folder.

    Raises StoreError when the named file cannot be opened; without a name, a folder that
    cannot be written leaves responses in memory, with a warning. Several workers cannot share
    memory: for them the file must open.
    """
    bounds = Bounds(settings.responses_max_age_s, settings.responses_max_bytes)
    if settings.redis_url is not None:
        from service.store.redis import RedisStore

        return RedisStore(settings.redis_url.get_secret_value(), bounds)
    path = settings.responses_path or _own_path(settings.cache_path)
    if settings.responses_path is None and settings.api_workers == 1:
        store = SqliteStore(path, bounds, can_fall_back=True)
        if path.exists():  # what is wrong with it is told now; else nothing is made before its use
            with contextlib.suppress(StoreError):  # locked: only for a while, perhaps
                store.open()
        return store
    store = SqliteStore(path, bounds)
    try:
        store.open()
    except StoreError as error:
        shown = f"is {path}" if settings.responses_path else f"is not set, so {path} is tried"
        raise StoreError(
            f"NIM_RESPONSES_PATH {shown}: {error.__cause__}; "
            "set it to a file in a folder this user may write"
        ) from error
    return store


def _own_path(cache: Path) -> Path:
    """The file in its folder of the cache, where nobody else may look; moved there if need be."""
    folder = cache / FOLDER_NAME
    path, earlier = folder / FILE_NAME, cache / FILE_NAME
    try:
        if folder.is_dir():
            sqlite_file.tighten(folder, 0o700)
        if earlier.exists() and not path.exists():
            folder.mkdir(mode=0o700, exist_ok=True)
            sqlite_file.move(earlier, path)
    except OSError as error:
        log.warning("%s cannot be made private: %s", folder, error)
    return path
