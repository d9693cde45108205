"""Compiled kernels as one file: what Triton keeps in its cache folder, packed when a start ends.

Each start unpacks it into a folder of its own, where Triton finds its kernels and puts those that
are new; so what is kept never changes under a reader. Triton writes absolute paths into the
`__grp__` files that name the outputs of one kernel; they are made good at the unpacking.
"""

from __future__ import annotations

import hashlib
import json
import logging
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import triton

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

ARCHIVE: Final = "triton.tar"
_GROUPS: Final = "__grp__*.json"

log = logging.getLogger(__name__)


@contextmanager
def kept(store: Store, part: Part) -> Iterator[None]:
    """A block inside which Triton takes its kernels from the part and adds what it compiles.

    While one process compiles for a part that is not there, others wait for it.
    """
    with (
        tempfile.TemporaryDirectory(prefix="harmonium-kernels-") as name,
        ExitStack() as held,
        _cache_at(Path(name)),
    ):
        folder = Path(name)
        with store.shared(part) as slot:
            is_found = _is_unpacked(slot, folder)
        alone = None if is_found else _alone(held, store, part)
        if alone is not None:
            _is_unpacked(alone, folder)  # another process may have made it while we waited
        before = _files(folder)
        yield
        if _files(folder) != before:
            _keep(alone or _alone(held, store, part), folder)


def _alone(held: ExitStack, store: Store, part: Part) -> PartPlace | None:
    try:
        return held.enter_context(store.alone(part))
    except NotKept as reason:
        log.warning("The compiled kernels are not kept: %s", reason)
        return None


def _is_unpacked(slot: PartPlace, folder: Path) -> bool:
    """Fill the folder with what the part has, if it fits."""
    if slot.why_not() is not None:
        return False
    try:
        _unpack(slot.found(), folder)
    except Damaged as damage:
        log.warning("%s is damaged: %s", slot.folder, damage)
        return False
    return True


def _unpack(found: StoredPart, folder: Path) -> None:
    archive = found.folder / ARCHIVE
    if _digest(archive) != found.checksums.get(ARCHIVE):
        raise Damaged(f"{ARCHIVE} has another checksum")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    for path in folder.rglob(_GROUPS):
        group = json.loads(path.read_text())
        group["child_paths"] = {name: str(path.parent / name) for name in group["child_paths"]}
        path.write_text(json.dumps(group))


def _keep(slot: PartPlace | None, folder: Path) -> None:
    def write(target: Path) -> Checksums:
        with tarfile.open(target / ARCHIVE, "w") as tar:
            for path in _files(folder):
                tar.add(folder / path, path)
        return {ARCHIVE: _digest(target / ARCHIVE)}

    num_bytes = 2 * sum((folder / path).stat().st_size for path in _files(folder)) + (1 << 20)
    try:
        if slot is not None:
            slot.make(Recipe(num_bytes, write), is_anew=True)
    except NotKept as reason:
        log.warning("The compiled kernels are not kept: %s", reason)


def _files(folder: Path) -> list[str]:
    paths = (path for path in folder.rglob("*") if path.is_file() and path.name != "lock")
    return sorted(str(path.relative_to(folder)) for path in paths)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _cache_at(folder: Path) -> Iterator[None]:
    before = triton.knobs.cache.dir
    triton.knobs.cache.dir = str(folder)
    try:
        yield
    finally:
        triton.knobs.cache.dir = before
