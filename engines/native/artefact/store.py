"""The store of what a start can take over from the one before it, in parts.

    <folder>/weights-<name>/manifest.json       what it is valid for, and what its files hold
                            layer-000.safetensors ...
             .weights-<name>.lock               held shared to read, alone to make; where locks
                                                may end at this host, makers have a lease too
             .weights-<name>.<random>/          incomplete; left by a dead process if it is not
             locked

A part appears under its name only when it is whole. It is used only if its identity is the wanted
one to the letter and its files are what the manifest says; any other is removed and rebuilt.
So nothing is synced to the disk: what a power failure spoils is found. The kernel gives back the
lock of a process that dies. Where a reader's lock does not reach a maker on another host, that one
may remove what is read: the reader finds it Damaged and comes again.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
from torch import Tensor

from profiles.volume.locks import alone, locked

MANIFEST: Final = "manifest.json"
_SPARE_BYTES: Final = 64 << 20  # left on the disk beside a part
_TRIES: Final = 3  # others may make the part theirs in between
_REMOVED: Final = (errno.ENOENT, errno.ESTALE)  # while it was read, from another host

T = TypeVar("T")
Checksums = Mapping[str, str]  # of whatever a part's maker names

log = logging.getLogger(__name__)

_WORDS_AT_ONCE = 1 << 22


class NotKept(Exception):
    """A part can be neither found nor made here; the message says why."""


class Damaged(Exception):
    """Files are not what their manifest says."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part that is wanted: its name on the disk, and all that it depends on, in plain JSON."""

    name: str
    identity: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A part that is in the store; its checksums are for its reader to compare."""

    folder: Path
    checksums: Checksums


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a part is made: `write` fills a folder and returns checksums of what it wrote."""

    num_bytes: int  # that it will take on the disk, at most
    write: Callable[[Path], Checksums]


class Store:
    """The parts in one folder, for any number of processes at once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def folder(self) -> Path:
        return self._folder

    def use(self, part: Part, recipe: Recipe, read: Callable[[StoredPart], T]) -> T:
        """Read a part, making it first where it is not there, stale or Damaged.

        It is not replaced while it is read. NotKept if it is not available.
        """
        for _ in range(_TRIES):
            with self.shared(part) as slot:
                if slot.why_not() is None:
                    damaged = slot.inode()
                    try:
                        return read(slot.found())
                    except Damaged as damage:
                        log.warning("%s is damaged: %s", slot.folder, damage)
                    except OSError as error:
                        if error.errno not in _REMOVED:
                            raise
                        damaged = None  # what is there now is another maker's
                else:
                    damaged = None
            with self.alone(part) as slot:
                slot.remove(damaged)
                slot.make(recipe)
        raise NotKept(f"{self.slot(part).folder} is damaged repeatedly")

    def slot(self, part: Part) -> PartPlace:
        """A part's place, without a lock: others may change it meanwhile."""
        return PartPlace(self._folder, part)

    @contextmanager
    def shared(self, part: Part) -> Iterator[PartPlace]:
        """Hold a part's lock for reading: the part does not change inside the block."""
        with ExitStack() as held:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                held.enter_context(locked(self._lock_of(part), fcntl.LOCK_SH, self._title(part)))
            except OSError:
                log.debug("%s is read without a lock", self._folder, exc_info=True)  # read-only
            yield self.slot(part)

    @contextmanager
    def alone(self, part: Part) -> Iterator[PartPlace]:
        """Hold a part's lock alone, to make or replace it; raises NotKept where nothing can be
        written."""
        with ExitStack() as held:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                held.enter_context(alone(self._lock_of(part), self._title(part)))
            except OSError as error:
                reason = error.strerror or error
                raise NotKept(f"{self._folder} cannot be written: {reason}") from error
            yield self.slot(part)

    def _lock_of(self, part: Part) -> Path:
        return self._folder / f".{part.name}.lock"

    def _title(self, part: Part) -> str:
        return str(self._folder / part.name)


class PartPlace:
    """One part's place in the store, while its lock is held."""

    def __init__(self, store: Path, part: Part) -> None:
        self.folder = store / part.name
        self._store, self._part = store, part
        self._identity: dict[str, Any] = json.loads(json.dumps(part.identity))

    def why_not(self) -> str | None:
        """Why the part cannot be used as it is; None if it can, by all but its checksums."""
        try:
            manifest = self._manifest()
            identity, files = dict(manifest["identity"]), dict(manifest["files"])
            sizes = {name: (self.folder / name).stat().st_size for name in files}
        except FileNotFoundError as error:
            is_there = self.folder.exists()
            return f"lacks {Path(error.filename).name}" if is_there else "is not there"
        except (OSError, ValueError, KeyError, TypeError) as error:
            return f"cannot be read: {error!r}"
        if identity != self._identity:
            return _difference(identity, self._identity)
        wrong = [name for name in files if sizes[name] != files[name]]
        return f"has {wrong[0]} with {sizes[wrong[0]]} bytes" if wrong else None

    def found(self) -> StoredPart:
        """The stored part, if why_not() is None."""
        return StoredPart(self.folder, self._manifest()["checksums"])

    def inode(self) -> int | None:
        """Which folder the part is now; None if it is not there."""
        try:
            return self.folder.stat().st_ino
        except OSError:
            return None

    def remove(self, inode: int | None) -> None:
        if inode is not None and self.inode() == inode:
            shutil.rmtree(self.folder, ignore_errors=True)

    def make(self, recipe: Recipe, *, is_anew: bool = False) -> None:
        """Make the part unless it is there already; raises NotKept if it cannot be written.

        `is_anew`: replace one that can be used, which stays if the new one cannot be written.
        """
        reason = "is rebuilt" if is_anew else self.why_not()
        if reason is None:
            return
        log.info("Building %s, which %s ...", self.folder, reason)
        try:
            self._make(recipe, is_anew)
        except OSError as error:
            raise NotKept(f"{self.folder} cannot be written: {error.strerror or error}") from error

    def _make(self, recipe: Recipe, is_anew: bool) -> None:
        start = f".{self._part.name}."
        for left_over in self._store.glob(f"{start}*/"):
            shutil.rmtree(left_over, ignore_errors=True)
        if not is_anew:
            shutil.rmtree(self.folder, ignore_errors=True)  # stale: no start will use it
        self._check_room(recipe.num_bytes)
        unfinished = self._store / f"{start}{secrets.token_hex(4)}"
        unfinished.mkdir()  # by the umask: the group may use it where that allows it
        try:
            checksums = recipe.write(unfinished)
            manifest = {
                "identity": self._identity,
                "files": {path.name: path.stat().st_size for path in unfinished.iterdir()},
                "checksums": checksums,
            }
            (unfinished / MANIFEST).write_text(json.dumps(manifest, indent=1))
            shutil.rmtree(self.folder, ignore_errors=True)
            unfinished.rename(self.folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)

    def _check_room(self, num_bytes: int) -> None:
        free = shutil.disk_usage(self._store).free
        if free < num_bytes + _SPARE_BYTES:
            needed = (num_bytes + _SPARE_BYTES) / 1e9
            raise NotKept(f"{self.folder} needs {needed:.2f} GB and {free / 1e9:.2f} GB are free")

    def _manifest(self) -> dict[str, Any]:
        manifest: dict[str, Any] = json.loads((self.folder / MANIFEST).read_text())
        return manifest


def _difference(made: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    for name in wanted:
        if made.get(name) != wanted[name]:
            return f"was made for {name} {made.get(name)}, not {wanted[name]}"
    return f"was made for {sorted(set(made) - set(wanted))} too"


def checksum(tensor: Tensor) -> str:
    """The tensor's type, shape and the sum of word i * (2 i + 1), modulo 2^64.

    Any word that changes changes the sum, as odd factors have inverses; so do words that change
    places, but for rare ones. The same on every device. It finds accidents, not intruders.
    """
    flat = tensor.contiguous().view(-1).view(torch.uint8)
    padding = -len(flat) % 8
    if padding:
        flat = torch.cat([flat, flat.new_zeros(padding)])
    words = flat.view(torch.int64)
    most = max(1, min(len(words), _WORDS_AT_ONCE))
    odd = torch.arange(1, 2 * most, 2, dtype=torch.int64, device=words.device)
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    for first in range(0, len(words), _WORDS_AT_ONCE):
        piece = words[first : first + _WORDS_AT_ONCE]
        total += (piece * odd[: len(piece)]).sum() + 2 * first * piece.sum()
    shape = "x".join(str(size) for size in tensor.shape)
    return f"{str(tensor.dtype).removeprefix('torch.')} {shape} {int(total) % 2**64:016x}"
