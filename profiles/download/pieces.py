"""A file in pieces that are fetched side by side; what is here of each outlives a crash.

A small file is one piece, which grows at the end of its unfinished file. A large one has its final
size from the start, and a note beside it (`NAME.pieces`) says how much of each piece is here. The
note is written after the bytes, so it never promises what is not there.
"""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any, Final

from profiles.download.progress import Stopped

PIECE_BYTES = 256 << 20
_NOTE_EVERY: Final = 16 << 20  # bytes, of all pieces together


class NoRanges(Exception):
    """The source sends whole files only."""


class FilePiece:
    """Bytes `start` to `end` of a file, fetched in order."""

    def __init__(self, parts: UnfinishedFile, start: int, end: int, done: int = 0) -> None:
        self._parts, self.start, self.end, self.done = parts, start, end, done

    @property
    def next(self) -> int:
        """The first byte that is not here."""
        return self.start + self.done

    @property
    def left(self) -> int:
        return self.end - self.next

    @property
    def is_whole_file(self) -> bool:
        """Whether it is all of the file and nothing of it is here, so that it needs no range."""
        return self.next == 0 and self.end == self._parts.size

    @property
    def file_bytes(self) -> int:
        return self._parts.size

    def write(self, data: bytes) -> None:
        """Keep the next bytes, up to the end; raises Stopped where the parts are cancelled."""
        if self._parts.is_cancelled.is_set():
            raise Stopped
        view = memoryview(data)[: self.left]
        while view:
            written = os.pwrite(self._parts.descriptor, view, self.next)
            self.done += written
            view = view[written:]
        self._parts.grew(len(data))

    def restart(self) -> int:
        """Discard the data of the only piece of a file; return its size in bytes."""
        forgotten, self.done = self.done, 0
        os.truncate(self._parts.descriptor, 0)
        return forgotten


class UnfinishedFile:
    """The unfinished file of one download, open for its pieces."""

    def __init__(self, path: Path, size: int) -> None:
        self._path, self.size = path, size
        self.is_cancelled = threading.Event()
        self._lock, self._unnoted = threading.Lock(), 0
        noted = _noted(path, size)
        have = _size(path) if noted is None else 0
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        if have > size:  # of another file
            os.truncate(self.descriptor, 0)
            have = 0
        if noted is not None:
            self.pieces = [FilePiece(self, start, end, done) for start, end, done in noted]
        else:
            self.pieces = self._cut(have)

    def _cut(self, have: int) -> list[FilePiece]:
        """The existing data is the beginning of the first piece."""
        first = min(self.size, max(PIECE_BYTES, have))
        ends = [first, *range(first + PIECE_BYTES, self.size, PIECE_BYTES)]
        if ends[-1] < self.size:
            ends.append(self.size)
        starts = [0, *ends[:-1]]
        pieces = [FilePiece(self, start, end) for start, end in zip(starts, ends, strict=True)]
        pieces[0].done = have
        return pieces

    def begin(self) -> list[FilePiece]:
        """Return the pieces that are not whole; a file of several gets its note first."""
        if len(self.pieces) > 1:
            self._note()
        return [piece for piece in self.pieces if piece.left]

    def unite(self) -> FilePiece:
        """Make one piece of the whole file, of which the first one's bytes stay."""
        first = self.pieces[0]
        self.pieces = [FilePiece(self, 0, self.size, first.done)]
        os.truncate(self.descriptor, first.done)
        _note_of(self._path).unlink(missing_ok=True)
        return self.pieces[0]

    def grew(self, num_bytes: int) -> None:
        """Note now and then how far the pieces are."""
        if len(self.pieces) == 1:
            return
        with self._lock:
            self._unnoted += num_bytes
            if self._unnoted >= _NOTE_EVERY:
                self._unnoted = 0
                self._note()

    def close(self) -> None:
        """Note how far it came; a whole file needs no note."""
        try:
            if all(not piece.left for piece in self.pieces):
                _note_of(self._path).unlink(missing_ok=True)
            elif len(self.pieces) > 1:
                with self._lock:
                    self._note()
        finally:
            os.close(self.descriptor)

    def _note(self) -> None:
        rows = [[piece.start, piece.end, piece.done] for piece in self.pieces]
        note = _note_of(self._path)
        unfinished = note.with_name(f"{note.name}.new")
        unfinished.write_text(json.dumps({"size": self.size, "pieces": rows}))
        unfinished.replace(note)


def have_bytes(path: Path, size: int) -> int:
    noted = _noted(path, size)
    return _size(path) if noted is None else sum(done for _, _, done in noted)


def remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    _note_of(path).unlink(missing_ok=True)


def _note_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.pieces")


def _noted(path: Path, size: int) -> list[tuple[int, int, int]] | None:
    """The pieces of a note, None without one; of a note that cannot be right nothing is here."""
    try:
        text = _note_of(path).read_text()
    except OSError:
        return None
    try:
        note: dict[str, Any] = json.loads(text)
        rows = [(int(start), int(end), int(done)) for start, end, done in note["pieces"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        rows = []
    ends = [0, *(end for _, end, _ in rows)]
    is_right = ends[-1] == size and all(
        start == before and 0 <= done <= end - start
        for (start, end, done), before in zip(rows, ends, strict=False)
    )
    if is_right and path.exists():
        return rows
    return [(0, size, 0)]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
