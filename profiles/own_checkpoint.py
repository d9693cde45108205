"""The checkpoint that NIM_MODEL_PATH names: a folder, or a place it is fetched from.

What a place holds is listed once and kept beside the files (`.listing.json`), with the revision
that was current then: later starts ask nobody, and serve just that. config.json is fetched with
the list, because it decides on the profile; the weights come when the engine is to start.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from profiles.checkpoint import read_json
from profiles.download.fetch import fetch, missing, open_remote
from profiles.download.source import RemoteFile, Source, read_source
from profiles.errors import DownloadError, ModelStoreError
from profiles.store import Fetching

LISTING = ".listing.json"
CONFIG = "config.json"
_SETTING = "NIM_MODEL_PATH"
_SERVED = (".safetensors", ".json", ".jinja")  # what is fetched, of the top folder


@dataclass(frozen=True, slots=True)
class OwnCheckpoint:
    """A folder, and where what it lacks is fetched from."""

    folder: Path
    name: str | None = None  # what requests call a model of its own shape; None: the folder's
    source: Source | None = None  # None: the folder is the operator's and holds it all
    files: tuple[RemoteFile, ...] = ()

    @property
    def to_fetch(self) -> tuple[RemoteFile, ...]:
        """The files that the folder lacks."""
        return tuple(missing(self.files, self.folder))

    def obtain(self, fetching: Fetching) -> None:
        """Fetch what is missing; raises DownloadError."""
        if self.source is not None and self.to_fetch:
            fetch(str(self.name), self.files, self.folder, self.source, fetching.ngc)


def open_own(
    model_path: Path | str,
    cache_dir: Path,
    fetching: Fetching,
    folder: Path | None = None,
    setting: str = _SETTING,
) -> OwnCheckpoint:
    """Find the folder for `model_path`, which is its path or a URI such as `hf://org/name@main`.

    `folder`: where a URI's files are to lie, if not in the cache. `setting`: what names the place.

    Raises ModelStoreError where the place cannot be read, holds no checkpoint, or may not be asked.
    """
    if isinstance(model_path, Path):
        return OwnCheckpoint(model_path)
    source = read_source(model_path, setting)
    name = source.location.rpartition("/")[2]
    digest = hashlib.sha256(str(source).encode()).hexdigest()[:12]
    folder = folder or cache_dir / "models" / f"{name}-{digest}"
    if not (folder / LISTING).is_file():
        _check_allowed(source, folder, fetching, setting)
        _list(source, folder, fetching, setting)
    known = read_json(folder / LISTING)
    files = tuple(RemoteFile(**entry) for entry in known["files"])
    pinned = replace(source, revision=known["revision"])
    config = [file for file in files if file.name == CONFIG]
    if missing(files, folder):
        _check_allowed(source, folder, fetching, setting)
    if missing(config, folder):
        fetch(f"{name}'s {CONFIG}", config, folder, pinned, fetching.ngc)
    return OwnCheckpoint(folder, name, pinned, files)


def _check_allowed(source: Source, folder: Path, fetching: Fetching, setting: str) -> None:
    if not fetching.is_allowed:
        raise ModelStoreError(
            f"{setting} is {source}, which is not whole in {folder}, and "
            "NIM_DISABLE_MODEL_DOWNLOAD forbids to fetch it: run `harmonium download-to-cache` "
            "without that, or copy the folder from a machine that has it"
        )


def _list(source: Source, folder: Path, fetching: Fetching, setting: str) -> None:
    """Ask the place what it holds, and keep the answer."""
    listing = open_remote(source, fetching.ngc).listing()
    files = _served(source, listing.files, setting)
    content = {"source": str(source), "revision": listing.revision, "files": [*map(asdict, files)]}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = folder / f"{LISTING}.{os.getpid()}"
        unfinished.write_text(json.dumps(content, indent=2))
        unfinished.replace(folder / LISTING)
    except OSError as error:
        raise DownloadError(
            f"{source} cannot be kept in {folder}: {error.strerror or error}; "
            "set NIM_CACHE_PATH to a folder that can be written"
        ) from error


def _served(source: Source, files: Sequence[RemoteFile], setting: str) -> list[RemoteFile]:
    """The files of a checkpoint in the hub's format, and nothing else."""
    kept = [file for file in files if "/" not in file.name and file.name.endswith(_SERVED)]
    names = {file.name for file in kept}
    if CONFIG not in names or not any(name.endswith(".safetensors") for name in names):
        raise DownloadError(
            f"{setting} is {source}, which has no {CONFIG} with *.safetensors beside it; name a "
            "checkpoint of gpt-oss in the hub's format"
        )
    return kept
