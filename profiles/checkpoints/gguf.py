"""Reading the head of a GGUF file: which model it holds, in the words of config.json.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final

import msgspec

from profiles.catalogue.models import Precision
from profiles.checkpoints.regular_file import check_file, read_bounded
from profiles.errors import ModelStoreError

HEAD: Final = ".gguf.json"  # what a head says, while the model's files are still to come

_MAGIC: Final = b"GGUF"
_STRING, _ARRAY = 8, 9
_SCALARS: Final = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_MAX_BYTES: Final = 1 << 20  # of a string; chat templates are the longest
MAX_HEAD_BYTES: Final = 32 << 20  # gpt-oss's vocabulary, which is most of it, takes 13 MB
_MAX_KEYS: Final = 10_000  # gpt-oss has 40
_MAX_STRINGS: Final = 2_000_000  # of all arrays; gpt-oss has 648,000 tokens and merges
_MAX_FILES: Final = 1_000  # of one model
_PART: Final = re.compile(r"(.*)-([0-9]{5})-of-([0-9]{5})\.gguf", re.DOTALL)
_BY_TYPE: Final[Mapping[int | None, Precision]] = {0: "fp32", 38: "mxfp4"}  # general.file_type
_TOKENS: Final = "tokenizer.ggml.tokens"
_KEYS: Final = {  # of config.json
    "num_hidden_layers": "block_count",
    "hidden_size": "embedding_length",
    "intermediate_size": "expert_feed_forward_length",
    "num_local_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "sliding_window": "attention.sliding_window",
    "max_position_embeddings": "context_length",
    "vocab_size": "vocab_size",
}


def first_file(place: Path) -> Path | None:
    """Find the GGUF model of a folder, of one in several files the first; None if there is none.

    `place`: the folder, or the file itself where a folder has several models. A model may lie in a
    folder of its own within, as hubs keep the larger ones.

    Raises ModelStoreError where there are more models, or where one lacks files.
    """
    if place.is_file():
        return _whole(place)
    found = sorted(place.glob("*.gguf")) or sorted(place.glob("*/*.gguf"))
    models = models_among(str(path.relative_to(place)) for path in found)
    if not models and found:
        raise ModelStoreError(f"{place} has {found[0].name}, but not the first file of its model")
    if len(models) > 1:
        raise ModelStoreError(
            f"{place} has several GGUF models ({', '.join(models)}); name one: {place / models[0]}"
        )
    return _whole(place / models[0]) if models else None


def models_among(names: Iterable[str]) -> list[str]:
    """Find the GGUF models among some files, each by its only file or the first of its files."""
    return sorted(name for name in names if name.endswith(".gguf") and _part(name)[0] == 1)


def files_of(name: str) -> list[str]:
    """Name all files of the model that a file belongs to, the first one first.

    Raises ModelStoreError for a name that speaks of more files than a model has.
    """
    match, (_, count) = _PART.fullmatch(name), _part(name)
    if match is None or count == 1:
        return [name]
    if count > _MAX_FILES:
        raise ModelStoreError(
            f"{name} is one of {count:,} files; a model has {_MAX_FILES:,} at most"
        )
    return [f"{match[1]}-{i:05}-of-{count:05}.gguf" for i in range(1, count + 1)]


def precision_of(file_type: int | None, num_bytes: int, num_weights: int) -> Precision:
    """Say in the nearest words of a profile what the experts, most of a model, are stored as.

    `file_type`: `general.file_type`. Of gpt-oss most files have MXFP4 experts, whatever they are
    called by what the rest is stored as, so that the size decides where the type does not.
    """
    if file_type in _BY_TYPE:
        return _BY_TYPE[file_type]
    return "mxfp4" if num_bytes < 1.2 * num_weights else "bf16"


def config_of(path: Path, num_bytes: int | None = None) -> dict[str, Any]:
    """Return what config.json would say of the model; raises ModelStoreError, naming the file.

    `num_bytes`: of all its files, where they are not here yet and `path` is the head of the first.
    """
    check_file(path)
    try:
        with path.open("rb") as file:
            head = _head(file)
    except OSError as error:
        raise ModelStoreError(f"{path} cannot be read: {error.strerror}") from None
    except (struct.error, ValueError) as error:
        raise ModelStoreError(f"{path} is not a complete GGUF file: {error}") from None
    architecture = head.get("general.architecture")
    config = {ours: head.get(f"{architecture}.{theirs}") for ours, theirs in _KEYS.items()}
    if config["vocab_size"] is None:
        config["vocab_size"] = head.get(_TOKENS)
    config["model_type"] = "gpt_oss" if architecture == "gpt-oss" else architecture
    config["gguf_type"] = head.get("general.file_type")
    config["gguf_bytes"] = num_bytes if num_bytes is not None else _size(path)
    return _described(msgspec.json.encode(config), path)


def kept_config(path: Path) -> dict[str, Any]:
    """Read what config_of() returned and was kept in a file; raises ModelStoreError."""
    return _described(read_bounded(path, _MAX_BYTES), path)


_Number = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class _Described(msgspec.Struct):
    """What may be in a description; ModelShape decides on what must be."""

    gguf_bytes: _Number
    gguf_type: _Number | None = None
    model_type: Annotated[str, msgspec.Meta(max_length=100)] | None = None
    num_hidden_layers: _Number | None = None
    hidden_size: _Number | None = None
    intermediate_size: _Number | None = None
    num_local_experts: _Number | None = None
    num_experts_per_tok: _Number | None = None
    num_attention_heads: _Number | None = None
    num_key_value_heads: _Number | None = None
    head_dim: _Number | None = None
    sliding_window: _Number | None = None
    max_position_embeddings: _Number | None = None
    vocab_size: _Number | None = None


def _described(content: bytes, path: Path) -> dict[str, Any]:
    try:
        return msgspec.structs.asdict(msgspec.json.decode(content, type=_Described))
    except RecursionError:
        raise ModelStoreError(f"{path} is nested too deep") from None
    except (ValueError, msgspec.MsgspecError) as error:
        raise ModelStoreError(f"{path} does not describe a GGUF model: {error}") from None


def _size(first: Path) -> int:
    try:
        return sum(first.with_name(name).stat().st_size for name in files_of(first.name))
    except OSError as error:
        raise ModelStoreError(f"{error.filename} cannot be read: {error.strerror}") from None


def _whole(first: Path) -> Path:
    """Return the first file of a model; raises ModelStoreError unless all its files are there."""
    files = [first.with_name(name) for name in files_of(first.name)]
    for path in files:
        if not path.is_file():
            raise ModelStoreError(f"{path} is missing; copy or download all files of the model")
    return files[0]


def _part(name: str) -> tuple[int, int]:
    """Return which file of how many this is: `name-00002-of-00003.gguf` is (2, 3)."""
    match = _PART.fullmatch(name)
    if match is not None and 1 <= int(match[2]) <= int(match[3]):
        return int(match[2]), int(match[3])
    return 1, 1


def _head(file: BinaryIO) -> Mapping[str, Any]:
    """Return every key of the head with its value; of an array its length."""
    if file.read(4) != _MAGIC:
        raise ValueError("it does not begin with GGUF")
    version = _scalar(file, "<I")
    if version not in (2, 3):
        raise ValueError(f"its version is {version}, but only 2 and 3 are supported")
    _, num_keys = _scalar(file, "<Q"), _scalar(file, "<Q")
    if num_keys > _MAX_KEYS:
        raise ValueError(f"its head has {num_keys:,} keys, {_MAX_KEYS:,} at most are read")
    reader = _Head(file)
    return {reader.string(): reader.value(reader.scalar("<I")) for _ in range(num_keys)}


class _Head:
    """Reads values one after the other, as many as a head may have."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._num_strings = file, 0

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._skip_array(self.scalar("<I"), self.scalar("<Q"))
        if kind not in _SCALARS:
            raise ValueError(f"a value has the unknown type {kind}")
        return self.scalar(_SCALARS[kind])

    def string(self) -> str:
        length = self._length()
        self._check_end(length)
        return self._file.read(length).decode("utf-8", "replace")

    def scalar(self, form: str) -> Any:
        return _scalar(self._file, form)

    def _skip_array(self, kind: int, length: int) -> int:
        if kind in _SCALARS:
            self._skip(struct.calcsize(_SCALARS[kind]) * length)
        elif kind == _STRING:
            self._num_strings += length
            if self._num_strings > _MAX_STRINGS:
                raise ValueError(f"its arrays have more than {_MAX_STRINGS:,} strings")
            for _ in range(length):
                self._skip(self._length())
        else:
            raise ValueError(f"an array has the type {kind}")
        return length

    def _skip(self, num_bytes: int) -> None:
        self._check_end(num_bytes)
        self._file.seek(num_bytes, 1)

    def _check_end(self, num_bytes: int) -> None:
        if num_bytes > MAX_HEAD_BYTES or self._file.tell() + num_bytes > MAX_HEAD_BYTES:
            raise ValueError(f"its head has more than {MAX_HEAD_BYTES:,} bytes")

    def _length(self) -> int:
        length = self.scalar("<Q")
        if length > _MAX_BYTES:
            raise ValueError(f"a string of it has {length} bytes")
        return int(length)


def _scalar(file: BinaryIO, form: str) -> Any:
    (value,) = struct.unpack(form, file.read(struct.calcsize(form)))
    return value
