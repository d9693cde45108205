"""Jobs in SQLite, for the workers of one host. Its clock is the kernel's, which is never set."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from sqlite3 import Connection
from typing import Final

from service.jobs.base import (
    LEASE_S,
    LONGEST_S,
    MAX_AGE_S,
    MAX_PER_TENANT,
    Claim,
    Due,
    Job,
    TooManyJobs,
)
from service.store.sqlite import SqliteDatabase

# An owner of NULL: no worker has it. until_s: when it may be claimed (again).
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS jobs (
    id TEXT PRIMARY KEY, kind TEXT NOT NULL, tenant TEXT NOT NULL, input BLOB NOT NULL,
    owner TEXT, until_s REAL NOT NULL DEFAULT 0, cursor BLOB NOT NULL DEFAULT x'',
    fence INTEGER NOT NULL DEFAULT 0, deaths INTEGER NOT NULL DEFAULT 0,
    is_stopping INTEGER NOT NULL DEFAULT 0, put_at REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS jobs_tenant ON jobs (tenant);
CREATE INDEX IF NOT EXISTS jobs_until ON jobs (until_s);
"""
_IS_DUE: Final = "NOT until_s BETWEEN :now AND :now + :longest"


class SqliteJobs:
    """Implements service.jobs.base.JobStore."""

    def __init__(
        self, database: SqliteDatabase, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        """`now_s`: a clock that the processes of this host share."""
        self._database = database
        self._now_s = now_s
        database.add_tables(_SCHEMA)

    async def put(self, job: Job, owner: str | None = None) -> Claim | None:
        return await self._database.run(self._put, job, owner)

    async def claim(self, id: str, owner: str) -> Claim | None:
        return await self._database.run(self._claim, id, owner)

    async def renew(
        self, id: str, fence: int, cursor: bytes | None = None, *, is_cleared: bool = False
    ) -> bool:
        return await self._database.run(
            _change,
            "UPDATE jobs SET until_s = ?, cursor = coalesce(?, cursor), deaths = deaths * ?"
            " WHERE id = ? AND fence = ? AND owner IS NOT NULL",
            (self._now_s() + LEASE_S, cursor, not is_cleared, id, fence),
        )

    async def finish(self, id: str, fence: int, again_s: float | None = None) -> bool:
        of_claim = "WHERE id = ? AND fence = ? AND owner IS NOT NULL"
        if again_s is None:
            return await self._database.run(_change, f"DELETE FROM jobs {of_claim}", (id, fence))
        return await self._database.run(
            _change,
            f"UPDATE jobs SET owner = NULL, until_s = ? {of_claim}",
            (self._now_s() + again_s if again_s else 0, id, fence),
        )

    async def due(self, kinds: Collection[str], limit: int) -> Due:
        if await self._database.is_unused():
            return Due()
        return await self._database.run(self._due, kinds, limit)

    async def stop(self, id: str) -> bool:
        # What no worker has is due at once, however long it was to wait.
        return await self._database.run(
            _change,
            "UPDATE jobs SET is_stopping = 1, until_s = CASE WHEN owner IS NULL THEN 0 ELSE until_s"
            " END WHERE id = ?",
            (id,),
        )

    async def has(self, id: str) -> bool:
        return await self._database.run(_has, id)

    # In the database's thread

    def _put(self, connection: Connection, job: Job, owner: str | None) -> Claim | None:
        execute = connection.execute
        (num,) = execute("SELECT COUNT(*) FROM jobs WHERE tenant = ?", (job.tenant,)).fetchone()
        if num >= MAX_PER_TENANT:
            raise TooManyJobs
        execute(
            "INSERT INTO jobs (id, kind, tenant, input, put_at) VALUES (?, ?, ?, ?, ?)",
            (job.id, job.kind, job.tenant, job.input, self._database.age(connection)),
        )
        return None if owner is None else self._claim(connection, job.id, owner)

    def _claim(self, connection: Connection, id: str, owner: str) -> Claim | None:
        rows = connection.execute(
            "UPDATE jobs SET deaths = deaths + (owner IS NOT NULL AND owner != :owner),"
            " owner = :owner, until_s = :now + :lease, fence = fence + 1"
            f" WHERE id = :id AND {_IS_DUE}"
            " RETURNING kind, tenant, input, fence, cursor, deaths, put_at, is_stopping",
            {"id": id, "owner": owner, "lease": LEASE_S, **self._times()},
        ).fetchall()
        if not rows:
            return None
        [(kind, tenant, input, fence, cursor, deaths, put_at, is_stopping)] = rows
        age_s = max(self._database.age(connection) - put_at, 0.0)
        job = Job(id, kind, tenant, input)
        return Claim(job, fence, cursor, deaths, age_s, bool(is_stopping))

    def _due(self, connection: Connection, kinds: Collection[str], limit: int) -> Due:
        oldest = self._database.age(connection) - MAX_AGE_S
        connection.execute(
            f"DELETE FROM jobs WHERE put_at < :oldest AND {_IS_DUE}",
            {"oldest": oldest, **self._times()},
        )
        named = {f"kind{number}": kind for number, kind in enumerate(kinds)}
        rows = connection.execute(
            f"SELECT id, deaths + (owner IS NOT NULL) FROM jobs WHERE {_IS_DUE} AND kind IN"
            f" ({', '.join(f':{name}' for name in named)}) ORDER BY put_at, id LIMIT :limit",
            {"limit": limit, **named, **self._times()},
        ).fetchall()
        stopping = connection.execute("SELECT id FROM jobs WHERE is_stopping").fetchall()
        return Due(tuple(rows), frozenset(id for (id,) in stopping))

    def _times(self) -> dict[str, float]:
        return {"now": self._now_s(), "longest": LONGEST_S}


def _change(connection: Connection, statement: str, values: tuple[object, ...]) -> bool:
    return connection.execute(statement, values).rowcount == 1


def _has(connection: Connection, id: str) -> bool:
    return connection.execute("SELECT 1 FROM jobs WHERE id = ?", (id,)).fetchone() is not None
