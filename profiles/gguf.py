"""Reading the head of a GGUF file: which model it holds, in the words of config.json.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

from profiles.errors import ModelStoreError

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
ALL_FLOAT32: Final = 0  # general.file_type
_MXFP4_EXPERTS: Final = 38
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


def first_file(folder: Path) -> Path | None:
    """Find the GGUF model of a folder, of one in several files the first; None if there is none.

    Raises ModelStoreError where there are more models, or where one lacks files.
    """
    models = [path for path in sorted(folder.glob("*.gguf")) if _part(path)[0] == 1]
    if not models:
        if found := next(folder.glob("*.gguf"), None):
            raise ModelStoreError(f"{folder} has {found.name}, but not the first file of its model")
        return None
    if len(models) > 1:
        names = ", ".join(path.name for path in models)
        raise ModelStoreError(f"{folder} has several GGUF models ({names}); keep one of them there")
    [first] = models
    stem = first.name.partition("-00001-of-")[0]
    for part in range(2, _part(first)[1] + 1):
        path = folder / f"{stem}-{part:05}-of-{_part(first)[1]:05}.gguf"
        if not path.is_file():
            raise ModelStoreError(f"{path} is missing; copy or download all files of the model")
    return first


def config_of(path: Path) -> dict[str, Any]:
    """Return what config.json would say of the model; raises ModelStoreError, naming the file."""
    try:
        with path.open("rb") as file:
            head = _head(file)
    except OSError as error:
        raise ModelStoreError(f"{path} cannot be read: {error.strerror}") from None
    except (struct.error, ValueError) as error:
        raise ModelStoreError(f"{path} is not a whole GGUF file: {error}") from None
    architecture = head.get("general.architecture")
    config = {ours: head.get(f"{architecture}.{theirs}") for ours, theirs in _KEYS.items()}
    if config["vocab_size"] is None:
        config["vocab_size"] = head.get(_TOKENS)
    config["model_type"] = "gpt_oss" if architecture == "gpt-oss" else architecture
    config["gguf_type"] = head.get("general.file_type")
    if config["gguf_type"] == _MXFP4_EXPERTS:
        config["quantization_config"] = {"quant_method": "mxfp4"}
    return config


def _part(path: Path) -> tuple[int, int]:
    """Return which file of how many this is: `name-00002-of-00003.gguf` is (2, 3)."""
    _, *numbers = path.stem.rsplit("-", 3)
    if len(numbers) == 3 and numbers[1] == "of" and numbers[0].isdigit() and numbers[2].isdigit():
        return int(numbers[0]), int(numbers[2])
    return 1, 1


def _head(file: BinaryIO) -> Mapping[str, Any]:
    """Return every key of the head with its value; of an array its length."""
    if file.read(4) != _MAGIC:
        raise ValueError("it does not begin with GGUF")
    version = _scalar(file, "<I")
    if version not in (2, 3):
        raise ValueError(f"its version is {version}, and 2 and 3 are known")
    _, num_keys = _scalar(file, "<Q"), _scalar(file, "<Q")
    return {_string(file): _value(file, _scalar(file, "<I")) for _ in range(num_keys)}


def _value(file: BinaryIO, kind: int) -> Any:
    if kind == _STRING:
        return _string(file)
    if kind == _ARRAY:
        return _skip_array(file, _scalar(file, "<I"), _scalar(file, "<Q"))
    if kind not in _SCALARS:
        raise ValueError(f"a value has the unknown type {kind}")
    return _scalar(file, _SCALARS[kind])


def _skip_array(file: BinaryIO, kind: int, length: int) -> int:
    """Read past an array, and return its length."""
    if kind in _SCALARS:
        file.seek(struct.calcsize(_SCALARS[kind]) * length, 1)
    elif kind == _STRING:
        for _ in range(length):
            file.seek(_length(file), 1)
    else:
        raise ValueError(f"an array has the type {kind}")
    return length


def _string(file: BinaryIO) -> str:
    return file.read(_length(file)).decode("utf-8", "replace")


def _length(file: BinaryIO) -> int:
    length = _scalar(file, "<Q")
    if length > _MAX_BYTES:
        raise ValueError(f"a string of it has {length} bytes")
    return int(length)


def _scalar(file: BinaryIO, form: str) -> Any:
    (value,) = struct.unpack(form, file.read(struct.calcsize(form)))
    return value
