"""Which store the settings ask for."""

from __future__ import annotations

from service.responses.store import Bounds, ResponseStore, StoreError
from service.responses.store_sqlite import SqliteStore
from service.settings import Settings

FILE_NAME = "responses.sqlite"


def store_of(settings: Settings) -> ResponseStore:
    """Redis, the file that was named, or one in the cache folder.

    Raises StoreError when the named file cannot be opened; without a name, a folder that
    cannot be written leaves responses in memory, with a warning. Several workers cannot share
    memory: for them the file must open.
    """
    bounds = Bounds(settings.responses_max_age_s, settings.responses_max_bytes)
    if settings.redis_url is not None:
        from service.responses.store_redis import RedisStore  # only who uses it waits for it

        return RedisStore(settings.redis_url.get_secret_value(), bounds)
    if settings.responses_path is None and settings.api_workers == 1:
        return SqliteStore(settings.cache_path / FILE_NAME, bounds, can_fall_back=True)
    path = settings.responses_path or settings.cache_path / FILE_NAME
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
