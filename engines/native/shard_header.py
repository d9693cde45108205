"""The header of a safetensors file: where its tensors lie."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, NamedTuple

_LENGTH_BYTES: Final = 8


class CutShort(ValueError):
    """The file ends within its header."""


class ShardHeader(NamedTuple):
    """The header, read and as it is written."""

    text: bytes
    tensors: dict[str, Any]  # as the file describes them
    begin: int  # of the tensors' bytes in the file


def read_header(path: Path) -> ShardHeader:
    """Raises OSError, and ValueError for what is no safetensors file."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        begin = _LENGTH_BYTES + length
        if begin > path.stat().st_size:
            raise CutShort(f"it ends within its header of {length:,} bytes")
        text = file.read(length)
    tensors: dict[str, Any] = dict(json.loads(text))
    tensors.pop("__metadata__", None)
    return ShardHeader(text, tensors, begin)
