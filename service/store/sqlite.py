"""The embedded store: one SQLite file, or memory, in a thread of its own.

Several processes of one host may share the file (write-ahead log). Where another host has it open,
this one keeps responses in a file of its own.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

from engines.threads import Threads
from profiles.volume.own import make_own_folder, own_folder
from service.store.ages import AgeClock, Reading
from service.store.base import (
    MissingRecord,
    ResponseRecord,
    StoreBounds,
    StoreError,
)
from service.store.guard import FailureLog, OutageGuard
from service.store.owner import OpenElsewhere, OwnedConnection
from service.store.sqlite_file import open_database

log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

_COLUMNS = "id, caller, response, input, is_final, previous_id, beat_at"
_LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_FULL = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE)
_FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EAGAIN)  # the last: no thread for its owner


class SqliteStore:
    """Implements service.store.base.ResponseStore; opened at its first use, or by open."""

    def __init__(
        self,
        path: Path | None = None,
        bounds: StoreBounds | None = None,
        *,
        spare: Path | None = None,
        can_fall_back: bool = False,
    ) -> None:
        """`spare`: the file that is used where another host has the first one open."""
        self._path, self._spare = path, spare
        self._can_fall_back = can_fall_back  # to memory, when the file cannot be opened
        self._bounds = bounds or StoreBounds()
        self._ages = AgeClock(self._bounds.clock)
        self._thread = Threads(1, "response-store")
        # Written by that thread alone:
        self._opened: OwnedConnection | None = None
        self._guard = OutageGuard(
            f"the file of responses ({path})", "responses cannot be stored or read until it is free"
        )
        self._failures = FailureLog()
        self._lasts: bool | None = None  # None: not opened yet

    def open(self) -> None:
        """Open the file now; blocks. Raises StoreError, but for a full disk: that is temporary."""
        try:
            self._thread.submit(self._guarded, self._connection).result()
        except StoreError as error:
            if not isinstance(error.__cause__, Exception) or not self._is_full(error.__cause__):
                raise

    async def lasts(self) -> bool:
        """Return whether the file could be opened and no other process locks it now."""
        if self._lasts is None or (self._opened is not None and self._opened.is_lost):
            try:
                await self._run(self._connection)
            except StoreError:
                return False
        return self._lasts is not False and not self._guard.is_closed

    async def put(self, record: ResponseRecord, pieces: bytes = b"") -> None:
        """Add a record and its pieces, and forget what there is no room for."""
        await self._run(self._put, record, pieces)

    async def extend(self, id: str, pieces: bytes) -> bool:
        """Add pieces to a running response; false when it should stop."""
        return await self._run(self._extend, id, pieces)

    async def finish(self, id: str, response: bytes) -> bool:
        """Make a running response final; false when it was so before, or is gone."""
        return await self._run(self._finish, id, response)

    async def get(self, id: str, owner: str) -> ResponseRecord:
        """Read the record of this id and owner, and note its use; raises MissingRecord."""
        return await self._run(self._read, id, owner)

    async def pieces(self, id: str, start: int = 0) -> list[bytes]:
        """Read the batches of pieces from the one numbered `start` on."""
        return await self._run(self._pieces, id, start)

    async def request_stop(self, id: str) -> None:
        """Mark the record, which its run sees at its next extend()."""
        await self._run(self._request_stop, id)

    async def delete(self, id: str, owner: str) -> None:
        """Remove the record of this id and owner; raises MissingRecord."""
        await self._run(self._delete, id, owner)

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
        """One transaction; while another process locks the file, only now and then one waits."""
        place = self._path or "in memory"
        if self._guard.is_closed:
            raise StoreError(f"The store of responses ({place}) is locked by another process")
        try:
            with self._connection():
                return work(*args, **kwargs)
        except (sqlite3.Error, OSError) as error:
            if _is_locked(error):
                self._guard.close(error)
            else:
                self._failures.failed(
                    "The store of responses (%s) failed: %s. Responses have store: false until it "
                    "works again.",
                    place,
                    error,
                )
            raise StoreError(f"The store of responses ({place}) failed: {error}") from error

    def _connection(self) -> sqlite3.Connection:
        if self._opened is not None and self._opened.is_lost:
            self._close()
        if self._opened is None:
            try:
                self._opened = self._open_file()
                self._lasts = True
            except (sqlite3.Error, OSError) as error:
                if not self._can_fall_back or _is_locked(error) or self._is_full(error):
                    raise
                log.error(
                    "Responses are kept in memory only, until this server stops, and are marked "
                    "store: false: %s: %s; move the file away, or set NIM_RESPONSES_PATH",
                    self._path,
                    error,
                )
                self._opened = open_database(None)
                self._lasts = False
        return self._opened

    def _is_full(self, error: Exception) -> bool:
        """Whether it failed because the disk is full, which the next try may find changed."""
        code = getattr(error, "sqlite_errorcode", 0)
        if getattr(error, "errno", 0) in _FULL_DISK or code in _FULL:
            return True
        # SQLite says of a file that could not be made only that it cannot be opened.
        return self._path is not None and _has_no_room(self._path)

    def _open_file(self) -> OwnedConnection:
        try:
            return self._open_at(self._path)
        except OpenElsewhere as error:
            if self._spare is None:
                raise
            if not self._spare.exists():
                tell_own_place(error, self._spare)
            self._path, self._spare = self._spare, None
            return self._open_at(self._path)

    @staticmethod
    def _open_at(path: Path | None) -> OwnedConnection:
        if path is not None and path.is_relative_to(own_folder()):
            make_own_folder()  # which no other user shall have made
        return open_database(path)

    def _close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def _put(self, record: ResponseRecord, pieces: bytes) -> None:
        now = self._bounds.clock()
        connection = self._connection()
        connection.execute(
            f"INSERT INTO responses ({_COLUMNS}, used_at, size) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                record.id,
                record.owner,
                record.response,
                record.input,
                record.is_final,
                record.previous_id,
                now,
                self._age(),
                record.size,
            ),
        )
        self._add_pieces(record.id, pieces)
        self._trim()

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
            (now, self._age(), id),
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
        self._trim()
        return finished.rowcount == 1

    def _read(self, id: str, owner: str) -> ResponseRecord:
        now, age = self._bounds.clock(), self._age()
        rows = self._connection().execute(
            f"UPDATE responses SET used_at = ?"
            f" WHERE id = ? AND caller = ? AND used_at >= ? RETURNING {_COLUMNS}",
            (age, id, owner, age - self._bounds.max_age_s),
        )
        row = next(iter(rows.fetchall()), None)
        if row is None:
            raise MissingRecord(id)
        return _record(row, now)

    def _pieces(self, id: str, start: int) -> list[bytes]:
        rows = self._connection().execute(
            "SELECT pieces FROM pieces WHERE id = ? AND batch >= ? ORDER BY batch", (id, start)
        )
        return [pieces for (pieces,) in rows]

    def _request_stop(self, id: str) -> None:
        self._connection().execute("UPDATE responses SET is_stopping = 1 WHERE id = ?", (id,))

    def _delete(self, id: str, owner: str) -> None:
        deleted = self._connection().execute(
            "DELETE FROM responses WHERE id = ? AND caller = ?", (id, owner)
        )
        if not deleted.rowcount:
            raise MissingRecord(id)

    def _age(self) -> float:
        """The time by which ages are counted; kept in the file now and then."""
        if not self._ages.is_due:
            return self._ages.now()
        execute = self._connection().execute
        row = execute("SELECT wall, age FROM clock").fetchone()
        (newest,) = execute("SELECT MAX(used_at) FROM responses").fetchone()
        reading = self._ages.meet(None if row is None else Reading(*row), newest)
        if row is None:
            execute("INSERT INTO clock VALUES (?, ?)", (reading.wall, reading.age))
        else:
            execute("UPDATE clock SET wall = ?, age = ?", (reading.wall, reading.age))
        return reading.age

    def _trim(self) -> None:
        """Forget what is too old, then what is too much: each time the least recently used of
        the owner who has most, so that no owner can drive out those who have less."""
        execute = self._connection().execute
        execute("DELETE FROM responses WHERE used_at < ?", (self._age() - self._bounds.max_age_s,))
        while self._excess() > 0:
            execute(
                "DELETE FROM responses WHERE id = (SELECT id FROM responses WHERE caller ="
                " (SELECT caller FROM shares ORDER BY bytes DESC LIMIT 1) ORDER BY used_at LIMIT 1)"
            )

    def _excess(self) -> int:
        (num_bytes,) = self._connection().execute("SELECT bytes FROM total").fetchone()
        return int(num_bytes) - self._bounds.max_bytes


def _has_no_room(path: Path) -> bool:
    try:
        disk = os.statvfs(path.parent)
    except OSError:
        return False
    lacks_blocks = disk.f_blocks > 0 and disk.f_bavail == 0  # some file systems count neither
    return lacks_blocks or (disk.f_files > 0 and disk.f_favail == 0)


def tell_own_place(reason: Exception, place: Path) -> None:
    """Log, once for a server, that its responses are not where the cache is."""
    log.warning(
        "%s. This host keeps its responses in %s, for itself alone; they end with its temporary "
        "files. NIM_REDIS_URL shares responses between hosts, NIM_RESPONSES_PATH names a file on "
        "a disk of this host that lasts.",
        reason,
        place,
    )


def _is_locked(error: Exception) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _LOCKED  # less what SQLite adds above


def _record(
    row: tuple[str, str, bytes, bytes, int, str | None, float], now: float
) -> ResponseRecord:
    id, owner, response, input, is_final, previous_id, beat_at = row
    idle_s = now - beat_at
    return ResponseRecord(id, owner, response, input, bool(is_final), previous_id, idle_s, beat_at)
