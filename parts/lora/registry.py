"""The adapters that are served: those of the folder, and what the operator changed since.

All API workers of one server have one table, in a file of their common folder, so that an adapter
that one of them loads or unloads is so for all.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from engines.base import Adapter
from parts.lora.files import CONFIG, AdapterError, NoAdapter, served_adapter

log = logging.getLogger("harmonium.lora")

_TABLE: Final = "adapters"
_Rows = dict[str, Adapter | None]  # None: the operator unloaded it
_decode: Final = msgspec.json.Decoder(_Rows).decode


class _Table:
    """Adapters by name, as one of the workers wrote them last."""

    def __init__(self, shared_folder: Path | None) -> None:
        self._path = None if shared_folder is None else shared_folder / _TABLE
        self._rows: _Rows = {}
        self._read_at = (0, 0)

    @property
    def rows(self) -> _Rows:
        if self._path is None:
            return self._rows
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return self._rows
        version = found.st_ino, found.st_mtime_ns
        if version != self._read_at:
            self._rows, self._read_at = _decode(self._path.read_bytes()), version
        return self._rows

    def change(self, change: Callable[[_Rows], _Rows]) -> None:
        """Replace the rows, one worker at a time."""
        with self._locked():
            rows = change({**self.rows})
            if self._path is None:
                self._rows = rows
            elif rows != self.rows:
                new = self._path.with_suffix(f".{os.getpid()}")
                new.write_bytes(msgspec.json.encode(rows))
                new.replace(self._path)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        if self._path is None:
            yield
            return
        with self._path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


class AdapterFolder:
    """Implements service.runtime.Adapters with the subfolders of one folder."""

    def __init__(
        self,
        source: Path,
        max_rank: int,
        taken: Sequence[str] = (),
        shared_folder: Path | None = None,
    ) -> None:
        """`taken`: names of the model, which no adapter may have."""
        self.source = source.resolve()
        self._max_rank = max_rank
        self._taken = frozenset(taken)
        self._table = _Table(shared_folder)
        self._told: dict[str, str] = {}

    def get(self, name: str) -> Adapter | None:
        return self._table.rows.get(name)

    def all(self) -> Sequence[Adapter]:
        found = (each for each in self._table.rows.values() if each is not None)
        return sorted(found, key=lambda each: each.name)

    def refresh(self) -> None:
        """Take in what came, changed or went; a folder that cannot be served is logged once."""
        found: dict[str, Adapter] = {}
        for name, folder in candidates(self.source).items():
            try:
                found[name] = self.read(name, folder)
                self._told.pop(name, None)
            except AdapterError as error:
                if self._told.get(name) != str(error):
                    self._told[name] = str(error)
                    log.error("The adapter %r is not served: %s", name, error)
        unreadable = self._told.keys()

        def merged(rows: _Rows) -> _Rows:
            # A folder that is being written is unreadable for a while: what was served stays.
            kept = {
                name: row
                for name, row in rows.items()
                if name in found or name in unreadable or (row and Path(row.path).is_dir())
            }
            unloaded = {name for name, row in rows.items() if row is None}
            return kept | {name: each for name, each in found.items() if name not in unloaded}

        self._table.change(merged)

    def read(self, name: str, folder: Path) -> Adapter:
        """The adapter of a folder; raises AdapterError."""
        if name in self._taken:
            raise AdapterError(f"{folder}: {name!r} is a name of the model; rename the adapter")
        return served_adapter(name, folder, self._max_rank)

    def below(self, path: str) -> Path:
        """The folder that a path names, absolute or from `source` on; raises AdapterError."""
        folder = (self.source / path).resolve()
        if not folder.is_relative_to(self.source) or folder == self.source:
            raise AdapterError(f"{path[:256]!r} is not below NIM_PEFT_SOURCE, {self.source}")
        if not folder.is_dir():
            raise NoAdapter(f"{folder}: there is no such folder")
        return folder

    def put(self, adapter: Adapter) -> None:
        """Serve it from now on."""
        self._table.change(lambda rows: rows | {adapter.name: adapter})

    def remove(self, name: str) -> None:
        """Serve it no more, until it is put again."""
        self._table.change(lambda rows: rows | {name: None})


def candidates(source: Path) -> dict[str, Path]:
    """The subfolders that have an adapter, by name; those with a dot are others' (`..data` of
    Kubernetes)."""
    return {
        path.name: path
        for path in sorted(source.iterdir())
        if not path.name.startswith(".") and os.access(path / CONFIG, os.R_OK)
    }
