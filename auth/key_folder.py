"""Where key records lie: one JSON file, or a folder of them such as a mounted Secret."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from auth.base import AccessError
from auth.key_record import KeyFile, KeyRecord, decode
from profiles.volume.locks import alone

Signature = tuple[tuple[str, int, int, int], ...]


class KeyStoreError(AccessError):
    """The key records cannot be read or written; the message names the path and the remedy."""


class KeyFolder:
    """Reads and writes the records under one path."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def check(self) -> None:
        """Raise KeyStoreError for a path that is not there or holds something else."""
        if not self.path.exists():
            message = f"{self.path} does not exist; create it with `harmonium keys create`."
            raise KeyStoreError(message)
        self.read()

    def signature(self) -> Signature:
        """Return a value that changes whenever a file is written or replaced; empty without
        files."""
        found = []
        for path in self._files():
            with contextlib.suppress(FileNotFoundError):  # replaced meanwhile
                stat = path.stat()
                found.append((path.name, stat.st_mtime_ns, stat.st_size, stat.st_ino))
        return tuple(found)

    def read(self) -> dict[str, KeyRecord]:
        """All records by id; raises KeyStoreError."""
        records: dict[str, KeyRecord] = {}
        for path in self._files():
            for record in self._read_file(path).keys:
                if record.id in records:
                    raise KeyStoreError(f"{path}: the key id {record.id} is there twice; drop one.")
                records[record.id] = record
        return records

    def add(self, record: KeyRecord) -> None:
        """Write one more record: into the file, or into a file of its own in the folder."""
        with self._locked():
            if self.path.is_dir():
                self._write(self.path / f"{record.id}.json", KeyFile((record,)))
            else:
                old = self._read_file(self.path).keys if self.path.exists() else ()
                self._write(self.path, KeyFile((*old, record)))

    def replace(self, record: KeyRecord) -> None:
        with self._locked():
            for path in self._files():
                keys = self._read_file(path).keys
                if any(old.id == record.id for old in keys):
                    changed = tuple(record if old.id == record.id else old for old in keys)
                    self._write(path, KeyFile(changed))

    def _files(self) -> list[Path]:
        if not self.path.is_dir():
            return [self.path] if self.path.exists() else []
        found = self.path.glob("*.json")  # a mounted Secret keeps its own things under dots
        return sorted(path for path in found if not path.name.startswith("."))

    def _read_file(self, path: Path) -> KeyFile:
        try:
            if not path.is_file():  # a pipe would be waited for without end
                raise KeyStoreError(f"{path} is not a file; `harmonium keys create` writes one.")
            return decode(path.read_bytes())
        except OSError as error:
            raise KeyStoreError(f"{path} cannot be read: {error.strerror}.") from None
        except ValueError as error:
            message = f"{path} is not a file of keys: {error}; `harmonium keys create` writes one."
            raise KeyStoreError(message) from None

    def _write(self, path: Path, keys: KeyFile) -> None:
        """Replace the file at once, so that no reader sees half of it; only its owner reads it."""
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".keys-")  # mode 0600
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(keys.encode())
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Let in one writer at a time; an OSError inside becomes a KeyStoreError."""
        folder = self.path if self.path.is_dir() else self.path.parent
        try:
            with alone(folder, f"the keys in {folder}"):
                yield
        except OSError as error:
            message = f"{self.path} cannot be written: {error.strerror}; name a writable path."
            raise KeyStoreError(message) from None
