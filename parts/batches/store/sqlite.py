"""Files and batches in SQLite."""

from __future__ import annotations

from collections.abc import Sequence
from sqlite3 import Connection
from typing import Any, Final

from parts.batches.store.base import (
    Kind,
    MissingObject,
    ObjectInUse,
    Page,
    Query,
    StorageBounds,
    StorageFull,
    StoredObject,
)
from service.store.sqlite import SqliteDatabase

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS batch_objects (
    place INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, kind TEXT NOT NULL,
    tenant TEXT NOT NULL, document BLOB NOT NULL, until REAL NOT NULL, purpose TEXT NOT NULL,
    content TEXT NOT NULL, num_bytes INTEGER NOT NULL, uses TEXT NOT NULL,
    cancelled_at INTEGER NOT NULL DEFAULT 0, fence INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS batch_objects_tenant ON batch_objects (kind, tenant, place);
CREATE INDEX IF NOT EXISTS batch_objects_until ON batch_objects (until);
CREATE INDEX IF NOT EXISTS batch_objects_uses ON batch_objects (uses) WHERE uses != '';
"""
_COLUMNS: Final = (
    "id, kind, tenant, document, until, purpose, content, num_bytes, uses, cancelled_at"
)
# A batch that has not ended, and its input, whatever their time.
_LASTS: Final = (
    "(until >= ? OR uses != '' OR EXISTS"
    " (SELECT 1 FROM batch_objects AS reader"
    " WHERE reader.uses = batch_objects.id AND reader.uses != ''))"
)
_OF_BATCH: Final = "WHERE id = ? AND uses != '' AND fence <= ?"


class SqliteObjects:
    """Implements parts.batches.store.base.ObjectStore."""

    def __init__(self, database: SqliteDatabase, bounds: StorageBounds) -> None:
        self._database = database
        self._bounds = bounds
        database.add_tables(_SCHEMA)

    async def put(self, new: StoredObject) -> None:
        await self._database.run(self._put, new)

    async def get(self, kind: Kind, id: str, tenant: str) -> StoredObject:
        return await self._database.run(self._get, kind, id, tenant)

    async def page(self, query: Query) -> Page:
        return await self._database.run(self._page, query)

    async def delete(self, kind: Kind, id: str, tenant: str) -> StoredObject:
        return await self._database.run(self._delete, kind, id, tenant)

    async def write(self, id: str, fence: int, document: bytes | None, num_bytes: int = 0) -> bool:
        return await self._database.run(
            _change,
            f"UPDATE batch_objects SET fence = ?, document = coalesce(?, document), num_bytes = ?"
            f" {_OF_BATCH}",
            (fence, document, num_bytes, id, fence),
        )

    async def finish(
        self, id: str, fence: int, document: bytes, files: Sequence[StoredObject]
    ) -> bool:
        return await self._database.run(self._finish, id, fence, document, files)

    async def cancel(self, id: str, tenant: str, at: int) -> StoredObject:
        return await self._database.run(self._cancel, id, tenant, at)

    async def room(self, tenant: str) -> int:
        return await self._database.run(lambda connection: min(self._rooms(connection, tenant)))

    async def sweep(self, limit: int) -> list[str]:
        if await self._database.is_unused():
            return []
        return await self._database.run(self._sweep, limit)

    # In the database's thread

    def _put(self, connection: Connection, new: StoredObject) -> None:
        if new.uses:
            self._get(connection, "file", new.uses, new.tenant)
        room, room_of_tenant = self._rooms(connection, new.tenant)
        if new.num_bytes > min(room, room_of_tenant):
            raise StorageFull(is_of_tenant=room_of_tenant < room)
        self._insert(connection, new)

    def _insert(self, connection: Connection, new: StoredObject) -> None:
        connection.execute(
            f"INSERT INTO batch_objects ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 0)",
            (
                new.id,
                new.kind,
                new.tenant,
                new.document,
                self._database.age(connection) + new.lasts_s,
                new.purpose,
                new.content,
                new.num_bytes,
                new.uses,
            ),
        )

    def _rooms(self, connection: Connection, tenant: str) -> tuple[int, int]:
        total, of_tenant = connection.execute(
            "SELECT coalesce(sum(num_bytes), 0),"
            " coalesce(sum(CASE tenant WHEN ? THEN num_bytes ELSE 0 END), 0) FROM batch_objects",
            (tenant,),
        ).fetchone()
        return self._bounds.max_bytes - total, self._bounds.max_tenant_bytes - of_tenant

    def _get(self, connection: Connection, kind: Kind, id: str, tenant: str) -> StoredObject:
        row = connection.execute(
            f"SELECT {_COLUMNS} FROM batch_objects WHERE id = ? AND kind = ? AND tenant = ?"
            f" AND {_LASTS}",
            (id, kind, tenant, self._database.age(connection)),
        ).fetchone()
        if row is None:
            raise MissingObject(id)
        return self._object(connection, row)

    def _object(self, connection: Connection, row: tuple[Any, ...]) -> StoredObject:
        id, kind, tenant, document, until, *rest = row
        return StoredObject(
            id, kind, tenant, document, until - self._database.age(connection), *rest
        )

    def _page(self, connection: Connection, query: Query) -> Page:
        sign, order = (">", "ASC") if query.is_ascending else ("<", "DESC")
        place = None
        if query.after is not None:
            self._get(connection, query.kind, query.after, query.tenant)
            [place] = connection.execute(
                "SELECT place FROM batch_objects WHERE id = ?", (query.after,)
            ).fetchone()
        rows = connection.execute(
            f"SELECT {_COLUMNS} FROM batch_objects WHERE kind = ? AND tenant = ?"
            f" AND (? IS NULL OR place {sign} ?) AND (? IS NULL OR purpose = ?)"
            f" AND {_LASTS} ORDER BY place {order} LIMIT ?",
            (
                query.kind,
                query.tenant,
                place,
                place,
                query.purpose,
                query.purpose,
                self._database.age(connection),
                query.limit + 1,
            ),
        ).fetchall()
        shown = tuple(self._object(connection, row) for row in rows[: query.limit])
        return Page(shown, len(rows) > query.limit)

    def _delete(self, connection: Connection, kind: Kind, id: str, tenant: str) -> StoredObject:
        found = self._get(connection, kind, id, tenant)
        if _is_used(connection, id):
            raise ObjectInUse(id)
        connection.execute("DELETE FROM batch_objects WHERE id = ?", (id,))
        return found

    def _finish(
        self,
        connection: Connection,
        id: str,
        fence: int,
        document: bytes,
        files: Sequence[StoredObject],
    ) -> bool:
        is_ended = _change(
            connection,
            f"UPDATE batch_objects SET fence = ?, document = ?, num_bytes = 0, uses = ''"
            f" {_OF_BATCH}",
            (fence, document, id, fence),
        )
        for file in files if is_ended else ():
            self._insert(connection, file)
        return is_ended

    def _cancel(self, connection: Connection, id: str, tenant: str, at: int) -> StoredObject:
        connection.execute(
            "UPDATE batch_objects SET cancelled_at = ?"
            " WHERE id = ? AND tenant = ? AND uses != '' AND cancelled_at = 0",
            (at, id, tenant),
        )
        return self._get(connection, "batch", id, tenant)

    def _sweep(self, connection: Connection, limit: int) -> list[str]:
        rows = connection.execute(
            "SELECT id, content FROM batch_objects AS old WHERE until < ? AND uses = '' AND NOT"
            " EXISTS (SELECT 1 FROM batch_objects WHERE uses = old.id AND uses != '') LIMIT ?",
            (self._database.age(connection), limit),
        ).fetchall()
        connection.executemany("DELETE FROM batch_objects WHERE id = ?", [(id,) for id, _ in rows])
        return [content for _, content in rows if content]


def _is_used(connection: Connection, id: str) -> bool:
    """Whether a batch that has not ended reads this file, or is this batch."""
    found = connection.execute(
        "SELECT 1 FROM batch_objects WHERE (uses = ? OR id = ?) AND uses != ''", (id, id)
    )
    return found.fetchone() is not None


def _change(connection: Connection, statement: str, values: tuple[object, ...]) -> bool:
    return connection.execute(statement, values).rowcount == 1
