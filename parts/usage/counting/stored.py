"""The store of usage on a database, and the ledger of a runtime."""

from __future__ import annotations

from parts.usage.counting.ledger import Ledger
from parts.usage.store.base import UsageStore
from parts.usage.store.redis import RedisUsage
from parts.usage.store.sqlite import SqliteUsage
from service.errors import RequestError
from service.runtime import Runtime
from service.store.sqlite import Database, SqliteDatabase


def store_on(database: Database) -> UsageStore:
    if isinstance(database, SqliteDatabase):
        return SqliteUsage(database)
    return RedisUsage(database)


def ledger_of(runtime: Runtime) -> Ledger:
    """The ledger of this runtime; raises RequestError where nothing is counted."""
    ledger = runtime.of(Ledger)
    if ledger is None or not ledger.counts_all:
        raise RequestError(
            "This server counts no usage; its operator turns it on with NIM_USAGE=1.",
            status=501,
            type="server_error",
            code="usage_off",
        )
    return ledger
