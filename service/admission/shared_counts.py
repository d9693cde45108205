"""Counts of callers that all API workers of one server see, in memory that they map.

Rows in sets of 16, found by a hash of what is counted. A lock on the file, which the kernel gives
back when its holder dies, is held for some microseconds. Where a set is full, the row makes room
that was not used for longest, of those under which nothing runs.
"""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import floor
from pathlib import Path
from typing import Final

from service.admission.counts import Counts
from service.admission.remote import Windows
from service.shared_files import LIMIT_BYTES

_MOST_WORKERS: Final = 64
_WAYS: Final = 16
_WORD: Final = 8
# Of a row: hash, number of the running window, its count, that of the last one, and one for each
# worker: how many run.
_KEY, _WINDOW, _COUNT, _LAST, _RUNNING = range(5)
_ROW: Final = _RUNNING + _MOST_WORKERS
_NUM_SETS: Final = LIMIT_BYTES // (_WAYS * _ROW * _WORD)


class SharedCounts(Counts, Windows):
    """One worker's view of them."""

    def __init__(self, path: Path, worker: int) -> None:
        """A worker that died leaves what it ran: its successor begins at zero."""
        self._descriptor = os.open(path, os.O_RDWR)
        self._words = memoryview(mmap.mmap(self._descriptor, LIMIT_BYTES)).cast("Q")
        self._own = _RUNNING + worker
        with self._locked():
            for row in range(0, _NUM_SETS * _WAYS * _ROW, _ROW):
                self._words[row + self._own] = 0

    async def acquire_sliding_window_entry(
        self, key: str, limit: int, expiry: int, amount: int
    ) -> bool:
        with self._locked():
            row = self._row(key, expiry)
            last, ttl_s, running, _ = self._window(row, expiry)
            if floor(last * ttl_s / expiry + running) + amount > limit:
                return False
            self._words[row + _COUNT] += amount
            return True

    async def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        with self._locked():
            return self._window(self._row(key, expiry), expiry)

    def enter(self, key: str, at_once: int) -> bool:
        with self._locked():
            row = self._row(key)
            if sum(self._words[row + _RUNNING : row + _ROW]) >= at_once:
                return False
            self._words[row + self._own] += 1
            return True

    def leave(self, key: str) -> None:
        with self._locked():
            at = self._row(key) + self._own
            self._words[at] = max(self._words[at] - 1, 0)

    def add(self, key: str, amount: int) -> None:
        with self._locked():
            self._words[self._row(key) + _LAST] += amount

    def pop(self, key: str) -> int:
        with self._locked():
            at = self._row(key) + _LAST
            found, self._words[at] = self._words[at], 0
            return found

    def close(self) -> None:
        self._words.release()
        os.close(self._descriptor)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN)

    def _window(self, row: int, expiry: int) -> tuple[int, float, int, float]:
        left_s = expiry - time.time() % expiry
        last, count = self._words[row + _LAST], self._words[row + _COUNT]
        return last, left_s if last else 0.0, count, left_s + expiry if count else 0.0

    def _row(self, key: str, expiry: int = 0) -> int:
        """The row of a key, with the windows of now if it has some."""
        words, now = self._words, int(time.time())
        tag = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=_WORD).digest()) or 1
        first = tag % _NUM_SETS * _WAYS * _ROW
        rows = range(first, first + _WAYS * _ROW, _ROW)
        row = next((row for row in rows if words[row + _KEY] == tag), None)
        window = now // expiry if expiry else now
        if row is None:
            row = min(rows, key=self._age)
            words[row : row + _ROW] = memoryview(bytes(_ROW * _WORD)).cast("Q")
            words[row + _KEY] = tag
        elif expiry and (passed := window - words[row + _WINDOW] // expiry):
            words[row + _LAST] = words[row + _COUNT] if passed == 1 else 0
            words[row + _COUNT] = 0
        words[row + _WINDOW] = window * expiry if expiry else window
        return row

    def _age(self, row: int) -> tuple[bool, int]:
        """Sort key: those that nothing runs under first, then by when they were last used."""
        return any(self._words[row + _RUNNING : row + _ROW]), self._words[row + _WINDOW]
