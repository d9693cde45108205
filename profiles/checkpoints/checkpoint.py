"""Reading a checkpoint folder far enough to know that it is whole; no tensor is loaded."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from profiles.checkpoints import gguf
from profiles.checkpoints.file_names import shown
from profiles.checkpoints.regular_file import read_bounded
from profiles.checkpoints.safetensors_header import read_header
from profiles.checkpoints.shard_index import INDEX, read_index
from profiles.checkpoints.stored import StoredTensors, stored_tensors
from profiles.errors import ModelStoreError

SINGLE = "model.safetensors"
TENSORS = ".tensors.json"  # what the heads of the shards say, while these are still to come
_MAX_JSON_BYTES = 1 << 20  # gpt-oss's config.json has 2 kB


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A folder or a GGUF file that was opened: what it says of its model, and what it holds."""

    place: Path
    described_by: Path  # the file that says which model it is
    config: dict[str, Any]  # config.json's, or what the head of a GGUF file says in the same words

    @classmethod
    def open(cls, place: Path) -> Checkpoint:
        """Read a checkpoint's description; raises ModelStoreError."""
        try:
            return cls._opened(place)
        except OSError as error:
            raise ModelStoreError(
                f"{error.filename or place} cannot be read: {error.strerror}; NIM_MODEL_PATH must "
                "name a folder or file that this user can read"
            ) from None

    @classmethod
    def _opened(cls, place: Path) -> Checkpoint:
        if not place.is_dir() and not (place.is_file() and place.suffix == ".gguf"):
            problem = "neither a folder nor a *.gguf file" if place.exists() else "not there"
            is_of_a_hub = not place.is_absolute() and len(place.parts) == 2
            repository = f", or to hf://{place} if you mean the hub" if is_of_a_hub else ""
            raise ModelStoreError(
                f"NIM_MODEL_PATH is {place}, which is {problem}; set it to a folder with a "
                f"config.json and *.safetensors files, or to a GGUF file{repository}"
            )
        if place.is_dir() and not any(place.iterdir()):
            raise ModelStoreError(
                f"{place} is empty; mount the volume with the model there, or name another folder"
            )
        path, head = place / "config.json", place / gguf.HEAD
        if head.is_file():
            return cls(place, head, gguf.kept_config(head))
        is_checkpoint = path.is_file() and any(place.glob("*.safetensors"))
        first = None if is_checkpoint else gguf.first_file(place)
        if first is None:
            return cls(place, path, read_json(path))
        return cls(place, first, gguf.config_of(first))

    @property
    def has_gguf(self) -> bool:
        """Whether it is a GGUF model, also before its files are downloaded."""
        return self.described_by.name == gguf.HEAD or gguf.first_file(self.place) is not None

    @property
    def has_safetensors(self) -> bool:
        return any(self.place.glob("*.safetensors"))

    def stored(self) -> StoredTensors | None:
        """What its shards hold, also before they are downloaded; None where they are not known.

        Raises ModelStoreError.
        """
        if not self.place.is_dir():
            return None
        names = shard_names(self.place)
        if names and all((self.place / name).is_file() for name in names):
            return stored_tensors(read_header(self.place / name) for name in names)
        noted = self.place / TENSORS
        if not noted.is_file():
            return None
        try:
            return msgspec.convert(read_json(noted), StoredTensors)
        except msgspec.ValidationError as error:
            raise ModelStoreError(f"{noted} is damaged: {error}; delete it") from None

    def check_whole(self) -> None:
        """Raise ModelStoreError unless its shards, or its GGUF files, are all there."""
        if self.has_safetensors or not self.has_gguf:
            check_shards(self.place)


def check_shards(folder: Path) -> None:
    """Raise ModelStoreError unless every shard is there and not truncated."""
    for name, tensors in _shards(folder).items():
        header = read_header(folder / name)
        size_bytes, actual = header.file_bytes, (folder / name).stat().st_size
        if actual != size_bytes:
            raise ModelStoreError(
                f"{folder / name} has {actual:,} bytes, but its header says {size_bytes:,}; copy "
                f"or download it again"
            )
        if missing := sorted(tensors - header.tensors.keys()):
            raise ModelStoreError(
                f"{folder / name} lacks tensor {shown(missing[0])}, which {INDEX} lists there"
            )


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object of a checkpoint; raises ModelStoreError."""
    try:
        content = json.loads(read_bounded(path, _MAX_JSON_BYTES).decode())
    except ValueError as error:
        raise ModelStoreError(f"{path} is not valid JSON: {error}") from None
    except RecursionError:
        raise ModelStoreError(f"{path} is nested too deep") from None
    if not isinstance(content, dict):
        raise ModelStoreError(f"{path} must hold a JSON object")
    return content


def hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def shard_names(folder: Path) -> list[str]:
    """The shards of a folder's index, or its only one; none where neither is there."""
    if not (folder / INDEX).is_file() and not (folder / SINGLE).is_file():
        return []
    return sorted(_shards(folder))


def _shards(folder: Path) -> dict[str, set[str]]:
    """Map each shard's file name to the tensors it must hold."""
    if not (folder / INDEX).is_file():
        if (folder / SINGLE).is_file():
            return {SINGLE: set()}
        raise ModelStoreError(f"{folder} has neither {INDEX} nor {SINGLE}")
    return read_index(folder / INDEX)
