"""The header of a safetensors file: where its tensors lie."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

_LENGTH_BYTES: Final = 8


def read_header(path: Path) -> tuple[bytes, dict[str, Any], int]:
    """Its text, the tensors that it describes, and where their bytes begin; OSError, ValueError."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        begin = _LENGTH_BYTES + length
        if begin > path.stat().st_size:
            raise ValueError("it is truncated inside its header")
        text = file.read(length)
    tensors: dict[str, Any] = dict(json.loads(text))
    tensors.pop("__metadata__", None)
    return text, tensors, begin
