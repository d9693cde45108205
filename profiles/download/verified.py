"""Which files of a folder were hashed before, so that a restart need not."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from profiles.download.source import Wanted

NAME = ".verified.json"


class Verified:
    """Size, time and checksum of each file as it was hashed; kept in the folder itself."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._states = self._read()

    def has(self, file: Wanted) -> bool:
        """Whether the file is the very one that was hashed."""
        return self._states.get(file.name) == self._state(file)

    def add(self, file: Wanted) -> None:
        """Note a file as hashed now."""
        self._states[file.name] = self._state(file)

    def save(self) -> None:
        """Write the notes to the folder; where that is read-only, each start hashes the files."""
        if self._read() == self._states or not os.access(self._folder, os.W_OK):
            return
        unfinished = self._folder / f"{NAME}.{os.getpid()}"
        unfinished.write_text(json.dumps(self._states))
        unfinished.replace(self._folder / NAME)

    def _state(self, file: Wanted) -> list[Any]:
        stat = (self._folder / file.name).stat()
        return [stat.st_size, stat.st_mtime_ns, file.sha256]

    def _read(self) -> dict[str, Any]:
        try:
            states = json.loads((self._folder / NAME).read_text())
        except (OSError, ValueError):
            return {}
        return states if isinstance(states, dict) else {}
