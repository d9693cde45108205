"""Which store has the responses of a runtime."""

from __future__ import annotations

from parts.responses.store.base import ResponseStore, StoreBounds
from parts.responses.store.redis import RedisStore
from parts.responses.store.sqlite import SqliteStore
from service.runtime import Runtime
from service.store.sqlite import Database, SqliteDatabase


def store_of(runtime: Runtime) -> ResponseStore:
    """The stored responses, in the database of this runtime."""
    return store_on(runtime.database, runtime.of(StoreBounds))


def store_on(database: Database, bounds: StoreBounds | None = None) -> SqliteStore | RedisStore:
    """What is kept of it is the database's: this may be made again for each use."""
    if isinstance(database, SqliteDatabase):
        return SqliteStore(database, bounds)
    return RedisStore(database, bounds)
