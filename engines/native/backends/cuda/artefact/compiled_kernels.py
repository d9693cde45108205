"""Compiled kernels as one file: what Triton keeps in its cache folder, packed when a start ends.

Each start unpacks it into a folder of its own, where Triton finds its kernels and puts those that
are new; so what is kept never changes under a reader. Triton writes absolute paths into the
`__grp__` files that name the outputs of one kernel; they are made good at the unpacking.

There are two stores: the pre-built one, which a wheel or image brings and which is read-only, and
the machine's own, which holds what the first lacks.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import triton
from triton.runtime.cache import FileCacheManager

from engines import start_steps
from engines.live_folder import live_folder
from engines.native.artefact.store import (
    Checksums,
    Damaged,
    NotKept,
    Part,
    PartPlace,
    Recipe,
    Store,
    StoredPart,
)
from engines.native.backends.cuda.kernels.keys import fix_keys

ARCHIVE: Final = "triton.tar"
_GROUPS: Final = "__grp__*.json"
_ROOM_BYTES: Final = 64 << 20  # more than the kernels of one engine take
_NEEDED: Final = {".json", ".cubin", ".so"}  # to start a kernel; the rest is for its author

log = logging.getLogger(__name__)


@contextmanager
def kept(store: Store | None, part: Part, prebuilt: Store) -> Iterator[None]:
    """A block inside which Triton takes its kernels from the part and adds what it compiles.

    While one process compiles for a part that is not there, others wait for it.
    """
    with (
        live_folder(place_of(store)) as folder,
        ExitStack() as held,
        cache_at(folder),
    ):
        is_found = _is_unpacked(prebuilt.slot(part), folder)
        shipped = _files(folder)
        alone = None
        if store is not None:
            with store.shared(part) as slot:
                is_found = _is_unpacked(slot, folder) or is_found
            if not is_found:
                alone = _alone(held, store, part)
                is_found = alone is not None and _is_unpacked(alone, folder)  # made meanwhile
        if not is_found:
            start_steps.begin("compiling GPU kernels, about a minute")
            log.info("Compiling GPU kernels (first start only, about 1 min) ...")
        before = _files(folder)
        with _told(is_silent=not is_found):
            yield
        if store is not None and _files(folder) != before:
            _keep(alone or _alone(held, store, part), folder, shipped)


def place_of(store: Store | None) -> Path | None:
    """Where kernels are unpacked: None for the folder for temporary files, unless that is full."""
    if store is None or _room_in(Path(tempfile.gettempdir())) >= _ROOM_BYTES:
        return None
    return store.folder if _room_in(store.folder) >= _ROOM_BYTES else None


def _room_in(folder: Path) -> int:
    try:
        disk = os.statvfs(folder)
    except OSError:
        return 0
    if not os.access(folder, os.W_OK) or (disk.f_files > 0 and disk.f_favail == 0):
        return 0
    return disk.f_bavail * disk.f_frsize


def _alone(held: ExitStack, store: Store, part: Part) -> PartPlace | None:
    try:
        return held.enter_context(store.alone(part))
    except NotKept as reason:
        log.warning("The compiled kernels cannot be saved: %s", reason)
        return None


def _is_unpacked(slot: PartPlace, folder: Path) -> bool:
    """Fill the folder with what the part has, if it fits."""
    if slot.why_not() is not None:
        return False
    try:
        _unpack(slot.found(), folder)
    except (Damaged, FileNotFoundError) as damage:  # a maker on another host may have removed it
        log.warning("%s is damaged: %s", slot.folder, damage)
        return False
    except OSError as error:
        log.warning("%s cannot be unpacked: %s", slot.folder, error)
        return False
    return True


def _unpack(found: StoredPart, folder: Path) -> None:
    archive = found.folder / ARCHIVE
    if _digest(archive) != found.checksums.get(ARCHIVE):
        raise Damaged(f"{ARCHIVE} has another checksum")
    with tarfile.open(archive) as tar:
        # Files that are there are the same, and this process may run from them: written again, a
        # loaded library loses what the loader has put into it.
        missing = [each for each in tar if not (folder / each.name).exists()]
        tar.extractall(folder, missing, filter="data")
    for path in folder.rglob(_GROUPS):
        group = json.loads(path.read_text())
        group["child_paths"] = {name: str(path.parent / name) for name in group["child_paths"]}
        path.write_text(json.dumps(group))


def recipe(folder: Path, without: list[str] | None = None) -> Recipe:
    """How a part is made of the files that Triton left in a folder, but those named."""
    names = sorted({*_files(folder)} - {*(without or ())})

    def write(target: Path) -> Checksums:
        with tarfile.open(target / ARCHIVE, "w") as tar:
            for name in names:
                tar.add(folder / name, name)
        return {ARCHIVE: _digest(target / ARCHIVE)}

    num_bytes = 2 * sum((folder / name).stat().st_size for name in names) + (1 << 20)
    return Recipe(num_bytes, write)


def _keep(slot: PartPlace | None, folder: Path, shipped: list[str]) -> None:
    try:
        if slot is not None:
            _is_unpacked(slot, folder)  # what another process has added since
            slot.make(recipe(folder, shipped), is_anew=True)
    except NotKept as reason:
        log.warning("The compiled kernels cannot be saved: %s", reason)


def _files(folder: Path) -> list[str]:
    paths = (path for path in folder.rglob("*") if path.is_file() and path.suffix in _NEEDED)
    return sorted(str(path.relative_to(folder)) for path in paths)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def cache_at(folder: Path) -> Iterator[None]:
    """A block inside which Triton stores compiled machine code in a folder."""
    fix_keys()  # before this process launches any
    with triton.knobs.cache.scope(), triton.knobs.compilation.scope():
        triton.knobs.cache.dir = str(folder)
        triton.knobs.compilation.store_binary_only = True
        yield


@contextmanager
def _told(*, is_silent: bool) -> Iterator[None]:
    """A block in which the first kernel that has to be compiled is reported before it is."""
    missing: list[str] = []

    class Telling(FileCacheManager):  # type: ignore[misc]
        """Triton's own, which tells what is not there."""

        def get_group(self, filename: str) -> Any:
            found = super().get_group(filename)
            if found is None:
                if not missing and not is_silent:
                    log.info("Compiling missing kernels, first %s ...", filename)
                missing.append(filename)
                start_steps.begin(f"compiling GPU kernels, number {len(missing)}")
            return found

    started_s = time.monotonic()
    with triton.knobs.cache.scope():
        triton.knobs.cache.manager_class = Telling
        yield
    if missing:
        log.info("Compiled %d kernels in %.1f s", len(missing), time.monotonic() - started_s)
