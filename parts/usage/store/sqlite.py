"""Usage in SQLite."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from sqlite3 import Connection
from typing import Final

from parts.usage.store.base import (
    DAY_S,
    KEPT_DAYS,
    Totals,
    Unwritten,
    UsageCounts,
    UsageRow,
    first_of_month,
)
from service.store.sqlite import SqliteDatabase

# `age` is the store's time of the last change: rows are removed by it, whatever the wall clock
# showed.
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS usage_rows (
    day INTEGER NOT NULL, caller TEXT NOT NULL, tenant TEXT NOT NULL, model TEXT NOT NULL,
    requests INTEGER NOT NULL, input_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL, reasoning_tokens INTEGER NOT NULL, age REAL NOT NULL,
    PRIMARY KEY (day, caller, tenant, model)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS usage_gpu (
    day INTEGER NOT NULL, caller TEXT NOT NULL, tenant TEXT NOT NULL, model TEXT NOT NULL,
    gpu_ms INTEGER NOT NULL, age REAL NOT NULL,
    PRIMARY KEY (day, caller, tenant, model)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS usage_accounts (
    account TEXT NOT NULL, day INTEGER NOT NULL, tokens INTEGER NOT NULL, age REAL NOT NULL,
    PRIMARY KEY (account, day)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS usage_keys (
    caller TEXT PRIMARY KEY, used_at INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS usage_writers (
    writer TEXT PRIMARY KEY, number INTEGER NOT NULL, age REAL NOT NULL) WITHOUT ROWID;
"""
_COUNTED: Final = UsageCounts._fields[:-1]
# A table of its own: servers of the release before write rows without it.
_ADD_GPU: Final = (
    "INSERT INTO usage_gpu VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (day, caller, tenant, model) "
    "DO UPDATE SET gpu_ms = gpu_ms + excluded.gpu_ms, age = excluded.age"
)
_ADD_ROW: Final = (
    f"INSERT INTO usage_rows VALUES (?, ?, ?, ?, {', '.join('?' * len(_COUNTED))}, ?) "
    "ON CONFLICT (day, caller, tenant, model) DO UPDATE SET age = excluded.age, "
    + ", ".join(f"{name} = {name} + excluded.{name}" for name in _COUNTED)
)
_ADD_TOKENS: Final = (
    "INSERT INTO usage_accounts VALUES (?, ?, ?, ?) ON CONFLICT (account, day) DO UPDATE "
    "SET tokens = tokens + excluded.tokens, age = excluded.age"
)
_NOTE_USE: Final = (
    "INSERT INTO usage_keys VALUES (?, ?) ON CONFLICT (caller) DO UPDATE "
    "SET used_at = max(used_at, excluded.used_at)"
)
_NOTE_WRITER: Final = (
    "INSERT INTO usage_writers VALUES (?, ?, ?) ON CONFLICT (writer) DO UPDATE "
    "SET number = excluded.number, age = excluded.age WHERE number < excluded.number"
)
_TOTALS: Final = (
    "SELECT sum(CASE WHEN day = ? THEN tokens ELSE 0 END), sum(tokens) FROM usage_accounts "
    "WHERE account = ? AND day BETWEEN ? AND ?"
)


class SqliteUsage:
    """Implements parts.usage.store.base.UsageStore."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database
        self._swept_at = float("-inf")
        database.add_tables(_SCHEMA)

    async def write(self, batch: Unwritten, writer: str, number: int) -> None:
        await self._database.run(self._write, batch, writer, number)

    async def totals(self, accounts: Collection[str], day: int) -> Mapping[str, Totals]:
        return await self._database.run(_totals, accounts, day)

    async def rows(self, day: int, tenant: str | None) -> Mapping[UsageRow, UsageCounts]:
        return await self._database.run(_rows, day, tenant)

    async def uses(self) -> Mapping[str, int]:
        return await self._database.run(_uses)

    def _write(self, connection: Connection, batch: Unwritten, writer: str, number: int) -> None:
        age = self._database.age(connection)
        if connection.execute(_NOTE_WRITER, (writer, number, age)).rowcount == 0:
            return
        rows = [(*row, *counts[:-1], age) for row, counts in batch.rows.items()]
        connection.executemany(_ADD_ROW, rows)
        gpu = [(*row, counts.gpu_ms, age) for row, counts in batch.rows.items() if counts.gpu_ms]
        connection.executemany(_ADD_GPU, gpu)
        tokens = [(account, day, num, age) for account, day, num in batch.spent()]
        connection.executemany(_ADD_TOKENS, tokens)
        connection.executemany(_NOTE_USE, batch.uses.items())
        if age - self._swept_at >= DAY_S:
            for table in ("usage_rows", "usage_gpu", "usage_accounts", "usage_writers"):
                before = age - KEPT_DAYS * DAY_S
                connection.execute(f"DELETE FROM {table} WHERE age < ?", (before,))
            self._swept_at = age


def _totals(connection: Connection, accounts: Collection[str], day: int) -> dict[str, Totals]:
    found = {}
    for account in accounts:
        asked = (day, account, first_of_month(day), day)
        of_day, of_month = connection.execute(_TOTALS, asked).fetchone()
        found[account] = Totals(of_day or 0, of_month or 0)
    return found


def _rows(connection: Connection, day: int, tenant: str | None) -> dict[UsageRow, UsageCounts]:
    chosen = f"SELECT day, caller, tenant, model, {', '.join(_COUNTED)}, ifnull(gpu_ms, 0)"
    found = connection.execute(
        f"{chosen} FROM usage_rows LEFT JOIN usage_gpu USING (day, caller, tenant, model)"
        " WHERE day = ? AND (? IS NULL OR tenant = ?)",
        (day, tenant, tenant),
    )
    return {UsageRow(*each[:4]): UsageCounts(*each[4:]) for each in found}


def _uses(connection: Connection) -> dict[str, int]:
    return dict(connection.execute("SELECT caller, used_at FROM usage_keys"))
