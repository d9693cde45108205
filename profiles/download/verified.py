"""Which files of a folder were hashed before, so that a restart need not."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from pathlib import Path
from typing import Any

from profiles.download.source import FileToFetch

NAME = ".verified.json"


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Verified:
    """Size, time and checksum of each file as it was hashed; kept in the folder itself."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._states = self._read()

    def has(self, file: FileToFetch) -> bool:
        return self._states.get(file.name) == self._state(file)

    def add(self, file: FileToFetch) -> None:
        self._states[file.name] = self._state(file)

    def save(self) -> None:
        """Write the record to the folder; if that is read-only, each start hashes the files."""
        if self._read() == self._states or not os.access(self._folder, os.W_OK):
            return
        # Other hosts have the same process ids.
        unfinished = self._folder / f"{NAME}.{secrets.token_hex(4)}"
        unfinished.write_text(json.dumps(self._states))
        unfinished.replace(self._folder / NAME)

    @classmethod
    def seal(cls, folder: Path) -> None:
        """Hash every file of a folder that was made here, and keep that with it."""
        sealed = cls(folder)
        for path in sorted(folder.iterdir()):
            stat = path.stat()
            sealed._states[path.name] = [stat.st_size, stat.st_mtime_ns, _hash(path)]
        sealed.save()

    @property
    def is_sealed(self) -> bool:
        return bool(self._states)

    def is_as_sealed(self) -> bool:
        """Whether the folder's files are the recorded ones; hashes only changed files."""
        return all(
            self._is_same(self._folder / name, state) for name, state in self._states.items()
        )

    @staticmethod
    def _is_same(path: Path, state: list[Any]) -> bool:
        try:
            stat = path.stat()
            return [stat.st_size, stat.st_mtime_ns] == state[:2] or _hash(path) == state[2]
        except (OSError, IndexError, TypeError):
            return False

    def _state(self, file: FileToFetch) -> list[Any]:
        stat = (self._folder / file.name).stat()
        return [stat.st_size, stat.st_mtime_ns, file.sha256]

    def _read(self) -> dict[str, Any]:
        try:
            states = json.loads((self._folder / NAME).read_text())
        except (OSError, ValueError, RecursionError):
            return {}
        return states if isinstance(states, dict) else {}
