"""The embedded database: one SQLite file, or memory, in a thread of its own.

Several processes of one host may share the file (write-ahead log). Where another host has it open,
this one has a file of its own.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from engines.threads import Threads
from profiles.volume.own import make_own_folder, own_folder
from service.store.ages import AgeClock, ClockReading
from service.store.base import ScriptDatabase, StoreError
from service.store.guard import FailureLog, OutageGuard
from service.store.owner import OpenElsewhere, OwnedConnection
from service.store.sqlite_file import open_database

log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

# For one operation, above the wait for a lock: a disk that takes longer does not answer. Those that
# wait behind others do so as long as these end.
PATIENCE_S: Final = 4.0
_LOCKED: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_FULL: Final = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE)
_FULL_DISK: Final = (errno.ENOSPC, errno.EDQUOT, errno.EAGAIN)  # the last: no thread for its owner


class SqliteDatabase:
    """Implements service.store.base.AnyDatabase; opened at its first use, or by open."""

    def __init__(
        self,
        path: Path | None = None,
        *,
        spare: Path | None = None,
        can_fall_back: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`spare`: the file that is used where another host has the first one open."""
        self._path, self._spare = path, spare
        self._can_fall_back = can_fall_back  # to memory, when the file cannot be opened
        self._ages = AgeClock(clock)
        self._thread = Threads(1, "response-store")
        self._schemas: list[str] = []
        # Written by that thread alone:
        self._opened: OwnedConnection | None = None
        self._num_made = 0  # of the schemas, in what is open
        self._begun_s: float | None = None  # of the operation that runs
        self._guard = OutageGuard(
            f"the file of responses ({path})", "responses cannot be stored or read until it is free"
        )
        self._failures = FailureLog()
        self._lasts: bool | None = None  # None: not opened yet

    def add_tables(self, schema: str) -> None:
        """Have these tables made if they are missing, before the next use: statements that may run
        again, and that the clock of wall times has nothing to do with."""
        if schema not in self._schemas:
            self._schemas.append(schema)

    def open(self) -> None:
        """Open the file now; blocks. Raises StoreError, but for a full disk: that is temporary."""
        try:
            self._thread.submit(self._guarded, lambda _: None).result()
        except StoreError as error:
            if not isinstance(error.__cause__, Exception) or not self._is_full(error.__cause__):
                raise

    async def is_unused(self) -> bool:
        """Whether there is nothing in it: no process has made the file yet."""
        if self._opened is not None or self._path is None:
            return self._opened is None
        try:
            return not await asyncio.to_thread(self._path.exists)
        except PermissionError:
            return False

    async def lasts(self) -> bool:
        """Return whether the file could be opened, no other process locks it now, and its disk
        answers."""
        if self._lasts is None or (self._opened is not None and self._opened.is_lost):
            try:
                await self.run(lambda _: None)
            except StoreError:
                return False
        return self._lasts is not False and not self._guard.is_closed and not self._is_stuck

    async def run(
        self,
        work: Callable[Concatenate[sqlite3.Connection, P], R],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """Do work with the connection in one transaction, in the thread; raises StoreError."""
        loop = asyncio.get_running_loop()
        self._check_answers()
        doing = loop.run_in_executor(self._thread, lambda: self._guarded(work, *args, **kwargs))
        try:
            while not (await asyncio.wait((doing,), timeout=PATIENCE_S))[0]:
                self._check_answers()
            return doing.result()
        finally:
            doing.cancel()

    @property
    def _is_stuck(self) -> bool:
        begun_s = self._begun_s
        return begun_s is not None and time.monotonic() - begun_s >= PATIENCE_S

    def _check_answers(self) -> None:
        """Raise StoreError while the running operation waits for a disk that does not answer."""
        if self._is_stuck:
            message = f"{self._title} does not answer: an operation takes over {PATIENCE_S:g} s"
            self._failures.failed("%s. Responses have store: false until it ends.", message)
            raise StoreError(message)

    def age(self, connection: sqlite3.Connection) -> float:
        """The time by which ages are counted; kept in the file now and then. In the thread."""
        if not self._ages.is_due:
            return self._ages.now()
        row = connection.execute("SELECT wall, age FROM clock").fetchone()
        reading = self._ages.meet(None if row is None else ClockReading(*row))
        if row is None:
            connection.execute("INSERT INTO clock VALUES (?, ?)", (reading.wall, reading.age))
        else:
            connection.execute("UPDATE clock SET wall = ?, age = ?", (reading.wall, reading.age))
        return reading.age

    async def close(self) -> None:
        thread, loop = self._thread, asyncio.get_running_loop()
        try:
            await loop.run_in_executor(thread, self._close)
        except RuntimeError:  # closed before
            return
        thread.shutdown(wait=False)

    # In the thread

    def _guarded(self, work: Callable[..., R], *args: Any, **kwargs: Any) -> R:
        """One transaction; while another process locks the file, only now and then one waits."""
        if self._guard.is_closed:
            raise StoreError(f"{self._title} is locked by another process")
        self._begun_s = time.monotonic()
        try:
            with self._connection() as connection:
                return work(connection, *args, **kwargs)
        except (sqlite3.Error, OSError) as error:
            if _is_locked(error):
                self._guard.close(error)
            else:
                self._failures.failed(
                    "%s failed: %s. Responses have store: false until it works again.",
                    *(self._title, error),
                )
            raise StoreError(f"{self._title} failed: {error}") from error
        finally:
            self._begun_s = None

    @property
    def _title(self) -> str:
        return f"The store of responses ({self._path or 'in memory'})"

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
            self._num_made = 0
        while self._num_made < len(self._schemas):
            self._opened.executescript(self._schemas[self._num_made])
            self._num_made += 1
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


Database = SqliteDatabase | ScriptDatabase
