"""Responses in SQLite. Counters kept by triggers tell the total size, and each owner's, without
reading the rows."""

from __future__ import annotations

from sqlite3 import Connection
from typing import Final

from parts.responses.store.base import MissingRecord, ResponseRecord, StoreBounds
from service.store.sqlite import SqliteDatabase

_COLUMNS: Final = "id, caller, response, input, is_final, previous_id, beat_at"
_SCHEMA: Final = """
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS responses (
    id TEXT PRIMARY KEY, caller TEXT NOT NULL, response BLOB NOT NULL, input BLOB NOT NULL,
    is_final INTEGER NOT NULL, previous_id TEXT, beat_at REAL NOT NULL, used_at REAL NOT NULL,
    is_stopping INTEGER NOT NULL DEFAULT 0, size INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS responses_used_at ON responses (used_at);
CREATE INDEX IF NOT EXISTS responses_caller ON responses (caller, used_at);
CREATE TABLE IF NOT EXISTS pieces (
    id TEXT NOT NULL, batch INTEGER NOT NULL, pieces BLOB NOT NULL, PRIMARY KEY (id, batch)
);
CREATE TABLE IF NOT EXISTS total (bytes INTEGER NOT NULL);
INSERT INTO total SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM total);
CREATE TRIGGER IF NOT EXISTS responses_added AFTER INSERT ON responses BEGIN
    UPDATE total SET bytes = bytes + new.size; END;
CREATE TRIGGER IF NOT EXISTS responses_resized AFTER UPDATE OF size ON responses BEGIN
    UPDATE total SET bytes = bytes + new.size - old.size; END;
CREATE TRIGGER IF NOT EXISTS responses_removed AFTER DELETE ON responses BEGIN
    UPDATE total SET bytes = bytes - old.size; DELETE FROM pieces WHERE id = old.id; END;
CREATE TABLE IF NOT EXISTS shares (caller TEXT PRIMARY KEY, bytes INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS shares_bytes ON shares (bytes);
INSERT INTO shares SELECT caller, SUM(size) FROM responses
    WHERE NOT EXISTS (SELECT 1 FROM shares) GROUP BY caller;
CREATE TRIGGER IF NOT EXISTS shares_added AFTER INSERT ON responses BEGIN
    INSERT INTO shares VALUES (new.caller, new.size)
        ON CONFLICT (caller) DO UPDATE SET bytes = bytes + excluded.bytes; END;
CREATE TRIGGER IF NOT EXISTS shares_resized AFTER UPDATE OF size ON responses BEGIN
    UPDATE shares SET bytes = bytes + new.size - old.size WHERE caller = new.caller; END;
CREATE TRIGGER IF NOT EXISTS shares_removed AFTER DELETE ON responses BEGIN
    UPDATE shares SET bytes = bytes - old.size WHERE caller = old.caller;
    DELETE FROM shares WHERE caller = old.caller AND bytes <= 0; END;
-- Of responses that are being written: who may, and the tokens that the pieces came from.
CREATE TABLE IF NOT EXISTS writers (id TEXT PRIMARY KEY, fence INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS tokens (
    id TEXT NOT NULL, batch INTEGER NOT NULL, ids BLOB NOT NULL, PRIMARY KEY (id, batch)
);
CREATE TRIGGER IF NOT EXISTS responses_ended AFTER UPDATE OF is_final ON responses BEGIN
    DELETE FROM writers WHERE id = new.id; DELETE FROM tokens WHERE id = new.id; END;
CREATE TRIGGER IF NOT EXISTS responses_forgotten AFTER DELETE ON responses BEGIN
    DELETE FROM writers WHERE id = old.id; DELETE FROM tokens WHERE id = old.id; END;
COMMIT;
"""


class SqliteStore:
    """Implements parts.responses.store.base.ResponseStore."""

    def __init__(self, database: SqliteDatabase, bounds: StoreBounds | None = None) -> None:
        self.database = database
        self._bounds = bounds or StoreBounds()
        database.add_tables(_SCHEMA)

    async def lasts(self) -> bool:
        return await self.database.lasts()

    async def put(self, record: ResponseRecord, pieces: bytes = b"") -> None:
        await self.database.run(self._put, record, pieces)

    async def extend(self, id: str, pieces: bytes, token_ids: bytes = b"", fence: int = 0) -> bool:
        return await self.database.run(self._extend, id, pieces, token_ids, fence)

    async def finish(self, id: str, response: bytes, pieces: bytes = b"", fence: int = 0) -> bool:
        return await self.database.run(self._finish, id, response, pieces, fence)

    async def get(self, id: str, owner: str) -> ResponseRecord:
        return await self.database.run(self._read, id, owner)

    async def pieces(self, id: str, start: int = 0) -> list[bytes]:
        return await self.database.run(_pieces, id, start)

    async def token_ids(self, id: str) -> bytes:
        return await self.database.run(_token_ids, id)

    async def delete(self, id: str, owner: str) -> None:
        await self.database.run(_delete, id, owner)

    # In the database's thread

    def _put(self, connection: Connection, record: ResponseRecord, pieces: bytes) -> None:
        connection.execute(
            f"INSERT INTO responses ({_COLUMNS}, used_at, size) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                record.id,
                record.owner,
                record.response,
                record.input,
                record.is_final,
                record.previous_id,
                record.beat_at,
                self.database.age(connection),
                record.size,
            ),
        )
        _add_pieces(connection, record.id, pieces)
        self._trim(connection)

    def _extend(
        self, connection: Connection, id: str, pieces: bytes, token_ids: bytes, fence: int
    ) -> bool:
        updated = connection.execute(
            "UPDATE responses SET used_at = ? WHERE id = ? AND NOT is_final",
            (self.database.age(connection), id),
        )
        if not (updated.rowcount and _enter(connection, id, fence)):
            return False
        _add_pieces(connection, id, pieces)
        if token_ids:
            connection.execute(
                "INSERT INTO tokens SELECT ?, COUNT(*), ? FROM tokens WHERE id = ?",
                (id, token_ids, id),
            )
        return True

    def _finish(
        self, connection: Connection, id: str, response: bytes, pieces: bytes, fence: int
    ) -> bool:
        if not self._extend(connection, id, pieces, b"", fence):
            return False
        connection.execute(
            "UPDATE responses SET is_final = 1, size = size + ? - length(response), response = ?"
            " WHERE id = ?",
            (len(response), response, id),
        )
        self._trim(connection)
        return True

    def _read(self, connection: Connection, id: str, owner: str) -> ResponseRecord:
        age = self.database.age(connection)
        rows = connection.execute(
            f"UPDATE responses SET used_at = ?"
            f" WHERE id = ? AND caller = ? AND used_at >= ? RETURNING {_COLUMNS}",
            (age, id, owner, age - self._bounds.max_age_s),
        )
        row = next(iter(rows.fetchall()), None)
        if row is None:
            raise MissingRecord(id)
        id, owner, response, input, is_final, previous_id, beat_at = row
        return ResponseRecord(id, owner, response, input, bool(is_final), previous_id, beat_at)

    def _trim(self, connection: Connection) -> None:
        """Forget what is too old, then what is too much: each time the least recently used of
        the owner who has most, so that no owner can drive out those who have less."""
        execute = connection.execute
        oldest = self.database.age(connection) - self._bounds.max_age_s
        execute("DELETE FROM responses WHERE used_at < ?", (oldest,))
        while execute("SELECT bytes FROM total").fetchone()[0] > self._bounds.max_bytes:
            execute(
                "DELETE FROM responses WHERE id = (SELECT id FROM responses WHERE caller ="
                " (SELECT caller FROM shares ORDER BY bytes DESC LIMIT 1) ORDER BY used_at LIMIT 1)"
            )


def _enter(connection: Connection, id: str, fence: int) -> bool:
    """Become the writer of a response, unless a later one has; false then."""
    entered = connection.execute(
        "INSERT INTO writers VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET fence = excluded.fence"
        " WHERE fence <= excluded.fence",
        (id, fence),
    )
    return entered.rowcount == 1


def _add_pieces(connection: Connection, id: str, pieces: bytes) -> None:
    if pieces:
        connection.execute(
            "INSERT INTO pieces SELECT ?, COUNT(*), ? FROM pieces WHERE id = ?", (id, pieces, id)
        )
        connection.execute("UPDATE responses SET size = size + ? WHERE id = ?", (len(pieces), id))


def _pieces(connection: Connection, id: str, start: int) -> list[bytes]:
    rows = connection.execute(
        "SELECT pieces FROM pieces WHERE id = ? AND batch >= ? ORDER BY batch", (id, start)
    )
    return [pieces for (pieces,) in rows]


def _token_ids(connection: Connection, id: str) -> bytes:
    rows = connection.execute("SELECT ids FROM tokens WHERE id = ? ORDER BY batch", (id,))
    return b"".join(ids for (ids,) in rows)


def _delete(connection: Connection, id: str, owner: str) -> None:
    deleted = connection.execute("DELETE FROM responses WHERE id = ? AND caller = ?", (id, owner))
    if not deleted.rowcount:
        raise MissingRecord(id)
