"""The results of a batch on the disk, while it runs. Everything here blocks.

Each writer has files of its own, named by its fence. One that takes over copies the whole lines of
those before it, whose writers may still live: what they append is not seen any more. So no result
is lost that was written, and none is there twice.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import BinaryIO, Final

import msgspec

from parts.batches.files.folder import FilesFolder, append, unless_full
from parts.batches.lines import ResultCounts

_COPIED_BYTES: Final = 1 << 20  # at a time
_NAME: Final = re.compile(r"-(\d+)(r?)\.(out|err)")  # r: of an earlier try of the same writer


@dataclass(slots=True)
class ResultFiles:
    """The two files of one writer: answers, and errors."""

    folder: FilesFolder
    batch_id: str
    fence: int
    counts: ResultCounts = field(default_factory=ResultCounts)
    done: set[str] = field(default_factory=set)  # custom ids
    num_bytes: int = 0
    _files: dict[bool, BinaryIO] = field(default_factory=dict)  # by whether it has the errors
    _waiting: dict[bool, list[bytes]] = field(default_factory=lambda: {False: [], True: []})
    _writing: threading.Lock = field(default_factory=threading.Lock)

    def name(self, *, is_error: bool) -> str:
        return f"{self.batch_id}-{self.fence}.{'err' if is_error else 'out'}"

    def open(self, known: Collection[str]) -> None:
        """Take over what earlier writers left of the requests that are known; raises OSError and
        StorageFull."""
        for is_error in (False, True):
            name = self.name(is_error=is_error)
            self.folder.rename(name, name.replace(".", "r."))
        earlier = self._earlier()
        for is_error in (False, True):
            self._files[is_error] = self.folder.create(self.name(is_error=is_error))
        known = frozenset(known)
        for name in earlier:
            self._copy(name, known)
        self.write()
        self.folder.remove(*earlier)

    def add(self, line: bytes, *, is_error: bool) -> None:
        """Add a line, which write() writes; also while it does."""
        self._waiting[is_error].append(line)

    def write(self) -> None:
        """Write what was added; raises OSError and StorageFull, and may be called again then."""
        with self._writing:
            for is_error, file in self._files.items():
                self._write(file, is_error=is_error)

    def _write(self, file: BinaryIO, *, is_error: bool) -> None:
        lines, self._waiting[is_error] = self._waiting[is_error], []
        if not lines:
            return
        try:
            append(file, lines)
        except BaseException:
            self._waiting[is_error][:0] = lines
            raise
        self.num_bytes += sum(map(len, lines))
        for line in lines:
            self.done.add(self.counts.count(line, is_error=is_error))

    def complete(self) -> dict[bool, int]:
        """Have the disk keep both files; returns their sizes, by whether it has the errors."""
        self.write()
        return {is_error: self.folder.complete(file) for is_error, file in self._files.items()}

    def close(self) -> None:
        with self._writing:  # else what is being written may go to another file of the same number
            while self._files:
                self._files.popitem()[1].close()

    def _earlier(self) -> list[str]:
        """Files of earlier writers, the newest first: it has what was copied before."""
        found = []
        for name in self.folder.named(self.batch_id):
            if (match := _NAME.fullmatch(name.removeprefix(self.batch_id))) is not None:
                found.append((int(match[1]), name))
        return [name for fence, name in sorted(found, reverse=True) if fence <= self.fence]

    def _copy(self, name: str, known: frozenset[str]) -> None:
        is_error, size = name.endswith(".err"), 0
        with self.folder.of(name).open("rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break  # the writer died in the middle
                try:
                    custom_id = ResultCounts().count(line, is_error=is_error)
                except msgspec.DecodeError:
                    continue  # so may a power failure leave it
                if custom_id in self.done or custom_id not in known:
                    continue
                self.done.add(custom_id)
                self.add(line, is_error=is_error)
                size += len(line)
                if size >= _COPIED_BYTES:
                    unless_full(self.write)
                    size = 0
