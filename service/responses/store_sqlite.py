"""The embedded store: one SQLite file, or memory, in a thread of its own.

Several processes may share the file (write-ahead log). A counter kept by triggers tells
the total size without reading the rows.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import ParamSpec, TypeVar

from service.responses.store import Bounds, MissingRecord, Record, StoreError

log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

MEMORY = ":memory:"
_BUSY_TIMEOUT_S = 10.0
_COLUMNS = "id, caller, response, input, is_final, previous_id, beat_at"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS responses (
    id TEXT PRIMARY KEY, caller TEXT NOT NULL, response BLOB NOT NULL, input BLOB NOT NULL,
    is_final INTEGER NOT NULL, previous_id TEXT, beat_at REAL NOT NULL, used_at REAL NOT NULL,
    is_stopping INTEGER NOT NULL DEFAULT 0, size INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS responses_used_at ON responses (used_at);
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
"""


class SqliteStore:
    """Implements service.responses.store.ResponseStore; opened at its first use, or by open."""

    def __init__(
        self, path: Path | None = None, bounds: Bounds | None = None, *, can_fall_back: bool = False
    ) -> None:
        self._path = path
        self._can_fall_back = can_fall_back  # to memory, when the file cannot be opened
        self._bounds = bounds or Bounds()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="response-store")
        self._opened: sqlite3.Connection | None = None  # touched by that thread alone

    def open(self) -> None:
        """Open the file now; blocks. Raises StoreError."""
        self._thread.submit(self._guarded, self._connection).result()

    async def put(self, record: Record, pieces: bytes = b"") -> None:
        await self._run(self._put, record, pieces)

    async def extend(self, id: str, pieces: bytes) -> bool:
        return await self._run(self._extend, id, pieces)

    async def finish(self, id: str, response: bytes) -> bool:
        return await self._run(self._finish, id, response)

    async def get(self, id: str, caller: str) -> Record:
        return (await self._run(self._read, id, caller, False))[0]

    async def pieces(self, id: str, start: int = 0) -> list[bytes]:
        return await self._run(self._pieces, id, start)

    async def history(self, id: str, caller: str) -> list[Record]:
        return await self._run(self._read, id, caller, True)

    async def request_stop(self, id: str) -> None:
        await self._run(self._request_stop, id)

    async def delete(self, id: str, caller: str) -> None:
        await self._run(self._delete, id, caller)

    async def close(self) -> None:
        thread, loop = self._thread, asyncio.get_running_loop()
        try:
            await loop.run_in_executor(thread, self._close)
        except RuntimeError:  # closed before
            return
        thread.shutdown(wait=False)

    async def _run(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._thread, lambda: self._guarded(work, *args, **kwargs)
        )

    # In the thread

    def _guarded(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """One transaction."""
        try:
            with self._connection():
                return work(*args, **kwargs)
        except (sqlite3.Error, OSError) as error:
            place = self._path or "in memory"
            log.error("the store of responses (%s) failed: %s", place, error)
            raise StoreError(f"The store of responses ({place}) failed: {error}") from error

    def _connection(self) -> sqlite3.Connection:
        if self._opened is None:
            try:
                self._opened = _open(self._path)
            except (sqlite3.Error, OSError) as error:
                if not self._can_fall_back:
                    raise
                log.warning("Responses are kept in memory only: %s: %s", self._path, error)
                self._opened = _open(None)
        return self._opened

    def _close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def _put(self, record: Record, pieces: bytes) -> None:
        now = self._bounds.clock()
        connection = self._connection()
        connection.execute(
            f"INSERT INTO responses ({_COLUMNS}, used_at, size) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                record.id,
                record.caller,
                record.response,
                record.input,
                record.is_final,
                record.previous_id,
                now,
                now,
                record.size,
            ),
        )
        self._add_pieces(record.id, pieces)
        self._trim(now)

    def _add_pieces(self, id: str, pieces: bytes) -> None:
        if pieces:
            connection = self._connection()
            connection.execute(
                "INSERT INTO pieces SELECT ?, COUNT(*), ? FROM pieces WHERE id = ?",
                (id, pieces, id),
            )
            connection.execute(
                "UPDATE responses SET size = size + ? WHERE id = ?", (len(pieces), id)
            )

    def _extend(self, id: str, pieces: bytes) -> bool:
        now = self._bounds.clock()
        updated = self._connection().execute(
            "UPDATE responses SET beat_at = ?, used_at = ?"
            " WHERE id = ? AND NOT is_final RETURNING is_stopping",
            (now, now, id),
        )
        rows = updated.fetchall()
        if rows:
            self._add_pieces(id, pieces)
        return bool(rows) and not rows[0][0]

    def _finish(self, id: str, response: bytes) -> bool:
        finished = self._connection().execute(
            "UPDATE responses SET is_final = 1, size = size + ? - length(response), response = ?"
            " WHERE id = ? AND NOT is_final",
            (len(response), response, id),
        )
        self._trim(self._bounds.clock())
        return finished.rowcount == 1

    def _read(self, id: str, caller: str, has_history: bool) -> list[Record]:
        now = self._bounds.clock()
        records: list[Record] = []
        next_id: str | None = id
        while next_id is not None:
            rows = self._connection().execute(
                f"UPDATE responses SET used_at = ?"
                f" WHERE id = ? AND caller = ? AND used_at >= ? RETURNING {_COLUMNS}",
                (now, next_id, caller, now - self._bounds.max_age_s),
            )
            row = next(iter(rows.fetchall()), None)
            if row is None:
                raise MissingRecord(next_id)
            records.append(_record(row, now))
            next_id = records[-1].previous_id if has_history else None
        return records[::-1]

    def _pieces(self, id: str, start: int) -> list[bytes]:
        rows = self._connection().execute(
            "SELECT pieces FROM pieces WHERE id = ? AND batch >= ? ORDER BY batch", (id, start)
        )
        return [pieces for (pieces,) in rows]

    def _request_stop(self, id: str) -> None:
        self._connection().execute("UPDATE responses SET is_stopping = 1 WHERE id = ?", (id,))

    def _delete(self, id: str, caller: str) -> None:
        deleted = self._connection().execute(
            "DELETE FROM responses WHERE id = ? AND caller = ?", (id, caller)
        )
        if not deleted.rowcount:
            raise MissingRecord(id)

    def _trim(self, now: float) -> None:
        """Forget what is too old, then the least recently used until the rest fits."""
        connection = self._connection()
        oldest = now - self._bounds.max_age_s
        connection.execute("DELETE FROM responses WHERE used_at < ?", (oldest,))
        with closing(connection.cursor()) as cursor:
            while (excess := self._excess()) > 0:
                sizes = cursor.execute("SELECT id, size FROM responses ORDER BY used_at LIMIT 64")
                for id, size in sizes.fetchall():
                    connection.execute("DELETE FROM responses WHERE id = ?", (id,))
                    excess -= size
                    if excess <= 0:
                        break

    def _excess(self) -> int:
        (num_bytes,) = self._connection().execute("SELECT bytes FROM total").fetchone()
        return int(num_bytes) - self._bounds.max_bytes


def _open(path: Path | None) -> sqlite3.Connection:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
    opened = sqlite3.connect(path or MEMORY, timeout=_BUSY_TIMEOUT_S)
    try:
        opened.execute("PRAGMA journal_mode = WAL")
        opened.execute("PRAGMA synchronous = NORMAL")
        opened.executescript(_SCHEMA)
    except sqlite3.Error:
        opened.close()
        raise
    return opened


def _record(row: tuple[str, str, bytes, bytes, int, str | None, float], now: float) -> Record:
    id, caller, response, input, is_final, previous_id, beat_at = row
    idle_s = now - beat_at
    return Record(id, caller, response, input, bool(is_final), previous_id, idle_s, beat_at)
