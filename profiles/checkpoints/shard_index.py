"""The index of a checkpoint in several shards: which tensor lies in which file."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from profiles.checkpoints.file_names import check_name, shown
from profiles.checkpoints.regular_file import read_bounded
from profiles.errors import ModelStoreError

INDEX: Final = "model.safetensors.index.json"
MAX_INDEX_BYTES: Final = 16 << 20  # gpt-oss-120b's has 0.1 MB
_MAX_TENSORS: Final = 200_000
_MAX_SHARDS: Final = 1_000
_SUFFIX: Final = ".safetensors"


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


_decode: Final = msgspec.json.Decoder(_Index).decode


def read_index(path: Path) -> dict[str, set[str]]:
    """Map each shard's file name to the tensors in it; raises ModelStoreError."""
    return parse_index(read_bounded(path, MAX_INDEX_BYTES), str(path))


def parse_index(content: bytes, title: str) -> dict[str, set[str]]:
    """Map each shard's file name to the tensors in it; `title` names the index in errors.

    Raises ModelStoreError, also for names that are not plain names of safetensors files.
    """
    try:
        if content.count(b":") > 2 * _MAX_TENSORS:  # the parser makes an object for each
            raise ValueError(f"more than {_MAX_TENSORS:,} tensors")
        return _shards(_decode(content).weight_map)
    except RecursionError:
        raise ModelStoreError(f"{title} is nested too deep") from None
    except (ValueError, msgspec.MsgspecError) as error:
        raise ModelStoreError(f"{title} is not an index of shards: {error}") from None


def _shards(weight_map: dict[str, str]) -> dict[str, set[str]]:
    if len(weight_map) > _MAX_TENSORS:
        raise ValueError(f"more than {_MAX_TENSORS:,} tensors")
    shards: dict[str, set[str]] = {}
    for tensor, name in weight_map.items():
        if name not in shards:
            if "/" in check_name(name) or not name.endswith(_SUFFIX):
                raise ValueError(f"{shown(name)}, which is not a plain file name with {_SUFFIX}")
            if len(shards) == _MAX_SHARDS:
                raise ValueError(f"more than {_MAX_SHARDS:,} shards")
            shards[name] = set()
        shards[name].add(tensor)
    if not shards:
        raise ValueError("it has an empty weight_map")
    return shards
