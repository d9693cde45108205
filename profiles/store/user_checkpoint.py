"""The checkpoint that NIM_MODEL_PATH names: a folder or GGUF file, or a place it is fetched from.

What a place holds is listed once and kept beside the files (`.listing.json`), with the revision
that was current then: later starts use it without network access. config.json and the headers of
the shards are fetched with the list, or of a GGUF model its head, because they decide on the
profile (`.tensors.json` sums the headers up); the weights come when the engine is to start.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec

from profiles.checkpoints import gguf
from profiles.checkpoints.checkpoint import TENSORS, Checkpoint, read_json, shard_names
from profiles.checkpoints.gguf import config_of, files_of, models_among
from profiles.checkpoints.regular_file import read_bounded
from profiles.checkpoints.safetensors_header import SafetensorsHeader, head_bytes, parse_header
from profiles.checkpoints.shard_index import INDEX
from profiles.checkpoints.stored import check_format, stored_tensors
from profiles.download.answers import decoded
from profiles.download.fetch import fetch, fetch_head, list_files, missing
from profiles.download.progress import amount
from profiles.download.source import Listing, RemoteFile, Source, read_source
from profiles.errors import DownloadError, ModelStoreError
from profiles.store.store import Fetching

LISTING = ".listing.json"
_ARCHITECTURE = "gpt_oss"
CONFIG = "config.json"
_SETTING = "NIM_MODEL_PATH"
_SERVED = (".safetensors", ".json", ".jinja")  # what is fetched, of the top folder
_HEADER_BYTES = 256 << 10  # of a shard; a header of gpt-oss has 20 KB, and more is asked for twice
_HEAD_BYTES = gguf.MAX_HEAD_BYTES
_MAX_LISTING_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class UserCheckpoint:
    """A folder, and where what it lacks is fetched from."""

    folder: Path  # or the operator's GGUF file
    name: str | None = None  # what requests call a model of its own shape; None: the folder's
    source: Source | None = None  # None: the folder is the operator's and holds it all
    files: tuple[RemoteFile, ...] = ()

    def opened(self) -> Checkpoint:
        """The checkpoint in its present state; raises ModelStoreError."""
        return Checkpoint.open(self.folder)

    @property
    def place(self) -> str:
        """Its source, in the form of manifests."""
        return str(self.folder) if self.source is None else self.source.place

    @property
    def to_fetch(self) -> tuple[RemoteFile, ...]:
        return tuple(missing(self.files, self.folder))

    def obtain(self, fetching: Fetching) -> None:
        """Fetch what is missing; raises DownloadError, and ModelStoreError for what nothing
        here reads."""
        if self.source is not None and self.to_fetch:
            opened = self.opened()
            check_format(self.place, opened.config, opened.stored())
            fetch(str(self.name), self.files, self.folder, self.source, fetching.ngc)


def open_user(
    model_path: Path | str,
    cache_dir: Path,
    fetching: Fetching,
    folder: Path | None = None,
    setting: str = _SETTING,
) -> UserCheckpoint:
    """Find the folder for `model_path`, which is its path or a URI such as `hf://org/name@main`.

    `folder`: where a URI's files are to lie, if not in the cache. `setting`: what names the place.

    Raises ModelStoreError where the place cannot be read, holds no checkpoint, or may not be asked.
    """
    if isinstance(model_path, Path):
        return UserCheckpoint(model_path)
    source = read_source(model_path, setting)
    name = _name_of(source)
    folder = folder or folder_of(source, cache_dir)
    if not (folder / LISTING).is_file():
        _check_allowed(source, folder, fetching, setting)
        _list(source, folder, fetching, setting)
    known = _kept_listing(folder / LISTING)
    files, pinned = known.files, replace(source, revision=known.revision)
    if missing(files, folder):
        _check_allowed(source, folder, fetching, setting)
        _describe(name, files, folder, pinned, fetching)
    return UserCheckpoint(folder, name, pinned, files)


def folder_of(source: Source, cache_dir: Path) -> Path:
    digest = hashlib.sha256(str(source).encode()).hexdigest()[:12]
    return cache_dir / "models" / f"{_name_of(source)}-{digest}"


def _name_of(source: Source) -> str:
    return source.location.rpartition("/")[2]


class _KeptFile(msgspec.Struct):
    name: str
    size_bytes: int
    sha256: str | None = None


class _KeptListing(msgspec.Struct):
    files: Annotated[list[_KeptFile], msgspec.Meta(min_length=1)]
    revision: str | None = None


def _kept_listing(path: Path) -> Listing:
    """Read the list that is kept in a folder, by the rules for one that was just fetched."""
    try:
        kept = decoded(read_bounded(path, _MAX_LISTING_BYTES), _KeptListing, "the list of files")
        files = (RemoteFile(each.name, each.size_bytes, each.sha256) for each in kept.files)
        return Listing(tuple(files), kept.revision)
    except DownloadError as error:
        raise ModelStoreError(
            f"{path}: {error}; delete this file, and the source is asked for its list again"
        ) from None


def _describe(
    name: str, files: Sequence[RemoteFile], folder: Path, source: Source, fetching: Fetching
) -> None:
    """Download the small files that say which model it is."""
    config = [file for file in files if file.name in (CONFIG, INDEX)]
    if any(file.name == CONFIG for file in config):
        if missing(config, folder):
            fetch(f"{name}'s {CONFIG}", config, folder, source, fetching.ngc)
        if read_json(folder / CONFIG).get("model_type") == _ARCHITECTURE:
            _describe_tensors(files, folder, source, fetching)
    elif not (folder / gguf.HEAD).is_file():
        title = f"the head of {files[0].name}"
        head = fetch_head(title, files[0], _HEAD_BYTES, folder, source, fetching.ngc)
        content = config_of(head, sum(file.size_bytes for file in files))
        _keep(content, folder / gguf.HEAD)


def _describe_tensors(
    files: Sequence[RemoteFile], folder: Path, source: Source, fetching: Fetching
) -> None:
    """Download the headers of the shards, and keep what they say."""
    if (folder / TENSORS).is_file():
        return
    only = [file.name for file in files if file.name.endswith(".safetensors")]
    names = shard_names(folder) or only
    shards = [file for file in files if file.name in names]
    stored = stored_tensors(_header(each, folder, source, fetching) for each in shards)
    _keep(msgspec.to_builtins(stored), folder / TENSORS)


def _header(
    file: RemoteFile, folder: Path, source: Source, fetching: Fetching
) -> SafetensorsHeader:
    """Of a shard that is here or still to come; raises ModelStoreError."""
    title = f"{file.name} of {source}"

    def first(number: int) -> bytes:
        what = f"the header of {file.name}"
        path = fetch_head(what, file, number, folder, source, fetching.ngc)
        if not path.exists():  # another process finished it in between
            path = folder / file.name
        with path.open("rb") as opened:
            return opened.read(number)

    head = first(min(_HEADER_BYTES, file.size_bytes))
    needed = head_bytes(head, title)
    return parse_header(head if needed <= len(head) else first(needed), title)


def _check_allowed(source: Source, folder: Path, fetching: Fetching, setting: str) -> None:
    if not fetching.is_allowed:
        raise ModelStoreError(
            f"{setting} is {source}, which is incomplete in {folder}, and "
            f"NIM_DISABLE_MODEL_DOWNLOAD forbids downloads: run `harmonium download-to-cache` "
            "without that, or copy the folder from a machine that has it"
        )


def _list(source: Source, folder: Path, fetching: Fetching, setting: str) -> None:
    listing = list_files(source, fetching.ngc)
    files = _served(source, listing.files, setting)
    (folder / TENSORS).unlink(missing_ok=True)  # of an earlier list
    content = {"source": str(source), "revision": listing.revision, "files": [*map(asdict, files)]}
    _keep(content, folder / LISTING)


def _keep(content: Any, path: Path) -> None:
    """Write a file that is not there. Of several hosts the first one's stays: a branch may have
    moved between two lists, and all must mean the same commit."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
        unfinished.write_text(json.dumps(content, indent=2))
        try:
            path.hardlink_to(unfinished)
        except FileExistsError:
            pass
        except OSError:  # a file system without hard links
            unfinished.replace(path)
        unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise DownloadError(
            f"{path} cannot be written: {error.strerror or error}; "
            "set NIM_CACHE_PATH to a writable folder"
        ) from error


def _served(source: Source, files: Sequence[RemoteFile], setting: str) -> list[RemoteFile]:
    """The files of a checkpoint in the hub's format, or of one GGUF model, and nothing else."""
    kept = [file for file in files if "/" not in file.name and file.name.endswith(_SERVED)]
    names = {file.name for file in kept}
    is_checkpoint = CONFIG in names and any(name.endswith(".safetensors") for name in names)
    if is_checkpoint and source.file is None:
        return kept
    by_name = {file.name: file for file in files}
    model = files_of(_gguf(source, by_name, setting))
    if lost := [name for name in model if name not in by_name]:
        raise DownloadError(f"{setting} is {source}, which lacks {lost[0]}, a file of that model")
    return [by_name[name] for name in model]


def _gguf(source: Source, files: Mapping[str, RemoteFile], setting: str) -> str:
    """The first file of the chosen GGUF model."""
    models = models_among(files)
    if source.file is not None and files_of(source.file)[0] in models:
        return source.file
    if source.file is None and len(models) == 1:
        return models[0]
    if not models and source.file is None:
        raise DownloadError(
            f"{setting} is {source}, which has no {CONFIG} with *.safetensors beside it, and no "
            "GGUF model; name a checkpoint of gpt-oss in the hub's format, or in llama.cpp's"
        )
    problem = "has several GGUF models" if source.file is None else f"has no {source.file}"
    listed = "".join(f"\n  {source.place}?file={name}{_size_of(name, files)}" for name in models)
    remedy = f"name one:{listed}" if models else "and no known GGUF model"
    raise DownloadError(f"{setting} is {source.place}, which {problem}; {remedy}")


def _size_of(model: str, files: Mapping[str, RemoteFile]) -> str:
    size = sum(files[name].size_bytes for name in files_of(model) if name in files)
    return f" ({amount(size)})"
