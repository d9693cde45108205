"""Which requests the engine died under: what all API processes of a server know together.

A request is known by what it asks for, so that a client that sends it again is recognised.
Each has one small file; the folder exists only after a death.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import logging
import math
import os
import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import Final

import msgspec

from engines.base import EngineRequest
from engines.grammar.tree import to_plain
from profiles.volume.locks import try_lock

MAX_RECORDS: Final = 1024  # the ones that would be forgotten first leave first
QUARANTINE_S: Final = 600.0  # for which a record counts
_LOCK: Final = "lock"
_TURN_S: Final = 0.02  # how often another process's turn is looked at

log = logging.getLogger(__name__)


class Level(IntEnum):
    """What is held against a request."""

    CLEAR = 0
    SUSPECT = 1  # it ran when the engine died
    GRAVE = 2  # it ran in two deaths, and so did others
    QUARANTINED = 3  # it alone ran in two deaths: it is refused


@dataclass(frozen=True, slots=True)
class CrashRecord:
    """A request's level and how far it had come when the engine died."""

    level: Level = Level.CLEAR
    num_tokens: int = 0
    forget_at_s: float = 0.0  # on the monotonic clock, which all processes share


CLEAR: Final = CrashRecord()


def fingerprint(request: EngineRequest) -> str:
    """Name a request by what the engine computes; its id, seed and priority do not count."""
    digest = hashlib.blake2b(array("q", request.prompt_token_ids).tobytes(), digest_size=16)
    grammar = None if request.grammar is None else to_plain(request.grammar)
    rest = (replace(request.sampling, seed=None), request.stop_token_ids, grammar)
    digest.update(msgspec.msgpack.encode(rest))
    return digest.hexdigest()


class SuspectLock:
    """Lets one suspect at a time through, of all processes, in order within each."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._turns = asyncio.Lock()
        self._file: int | None = None

    async def enter(self) -> None:
        """Wait until no other suspect of any process runs."""
        await self._turns.acquire()
        try:
            await self._lock()
        except BaseException:
            self._turns.release()
            raise

    def leave(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
        self._turns.release()

    async def _lock(self) -> None:
        try:
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            file = os.open(self._path, os.O_CREAT | os.O_WRONLY, 0o600)
        except OSError as error:
            log.warning("Cannot wait for other processes' crash records: %s", error)
            return
        try:
            while not _is_locked(file, self._path):
                await asyncio.sleep(_TURN_S)
        except BaseException:
            os.close(file)
            raise
        self._file = file


def _is_locked(file: int, path: Path) -> bool:
    try:
        try_lock(file, fcntl.LOCK_EX, path, "suspects of several API workers may run side by side")
    except BlockingIOError:
        return False
    return True


class CrashRecords:
    """The records of suspects, in a folder; where it cannot be written none is suspected."""

    def __init__(self, folder: Path, keep_s: float = QUARANTINE_S) -> None:
        self._folder = folder
        self.keep_s = keep_s  # how long a record counts
        # Where no engine has died there are none, and no request waits for a disk to say so. That
        # is not known at first.
        self._look_until_s = math.inf
        self.lock = SuspectLock(folder / _LOCK)

    @property
    def are_any(self) -> bool:
        """Whether there may be records; cheap, because every request asks."""
        if time.monotonic() >= self._look_until_s:
            return False
        has_folder = self._folder.is_dir()
        if self._look_until_s == math.inf:
            self._look_until_s = time.monotonic() + self.keep_s if has_folder else 0.0
        return has_folder and any(self._keys())

    def note_death(self) -> None:
        """An engine process is gone: this process or another one may record what it ran."""
        self._look_until_s = time.monotonic() + self.keep_s

    def look_up(self, key: str) -> CrashRecord:
        try:
            level, num_tokens, forget_at_s = (self._folder / key).read_text().split()
        except (OSError, ValueError):
            return CLEAR
        record = CrashRecord(Level(int(level)), int(num_tokens), float(forget_at_s))
        if record.forget_at_s > time.monotonic():
            return record
        self.forget(key)
        return CLEAR

    def record(self, key: str, level: Level, num_tokens: int) -> None:
        """Raise a request's level to this one; a higher level stays."""
        self.note_death()
        level = max(level, self.look_up(key).level)
        text = f"{level:d} {num_tokens} {time.monotonic() + self.keep_s}"
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            self._make_room()
            unfinished = self._folder / f"{key}.{os.getpid()}"
            unfinished.write_text(text)
            unfinished.rename(self._folder / key)
        except OSError as error:
            log.warning("A request that crashed the engine cannot be recorded: %s", error)

    def forget(self, key: str) -> None:
        with contextlib.suppress(OSError):
            (self._folder / key).unlink()

    def _keys(self) -> Iterator[str]:
        return (name for name in os.listdir(self._folder) if name != _LOCK)

    def _make_room(self) -> None:
        keys = list(self._keys())
        if len(keys) >= MAX_RECORDS:
            ages = {key: self.look_up(key).forget_at_s for key in keys}
            for key in sorted(ages, key=ages.__getitem__)[: len(keys) - MAX_RECORDS + 1]:
                self.forget(key)
