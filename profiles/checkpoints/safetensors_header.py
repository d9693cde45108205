"""Reading the header of a safetensors file, which a source can give any content: bounded, checked.

The format: eight bytes with the length of a JSON object, the object, then the tensors' bytes
without gaps (https://github.com/huggingface/safetensors#format).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from profiles.checkpoints.regular_file import check_file
from profiles.errors import ModelStoreError

LENGTH_BYTES: Final = 8  # before the JSON
# A tensor takes some 150; a shard of gpt-oss-120b has 100 of them.
MAX_HEADER_BYTES: Final = 16 << 20
_MAX_COLONS: Final = 500_000  # four for a tensor: the parser makes an object for each
_MAX_DIMENSIONS: Final = 32
_MAX_FILE_BYTES: Final = 1 << 50
_METADATA: Final = "__metadata__"
_BITS: Final = {  # of a value
    **dict.fromkeys(("BOOL", "U8", "I8"), 8),
    **dict.fromkeys(("F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
}


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor: what it is, and where it lies in the bytes after the header."""

    dtype: str  # by the format's name, such as BF16
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def num_bytes(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class SafetensorsHeader:
    """The tensors of one file, and how long the file is."""

    head_bytes: int  # of the length and the JSON: the first tensor begins there
    tensors: Mapping[str, TensorEntry]

    @property
    def tensor_bytes(self) -> int:
        return max((entry.end for entry in self.tensors.values()), default=0)

    @property
    def file_bytes(self) -> int:
        return self.head_bytes + self.tensor_bytes


def head_bytes(first: bytes, title: str) -> int:
    """How many bytes at a file's beginning hold its header, by its first eight.

    `title`: what names the file in errors. Raises ModelStoreError.
    """
    try:
        return LENGTH_BYTES + _length(first)
    except ValueError as error:
        raise _invalid(title, error) from None


def parse_header(head: bytes, title: str) -> SafetensorsHeader:
    """Read a header from a file's first bytes, at least `head_bytes` of them.

    `title`: what names the file in errors. Raises ModelStoreError, also for tensors that overlap,
    leave a gap, or have another size than their type and shape say.
    """
    try:
        length = _length(head)
        text = memoryview(head)[LENGTH_BYTES : LENGTH_BYTES + length]
        if len(text) < length:
            raise ValueError(f"it ends within its header of {length:,} bytes")
        return SafetensorsHeader(LENGTH_BYTES + length, _tensors(bytes(text)))
    except RecursionError:
        raise ModelStoreError(f"{title} has a header that is nested too deep") from None
    except (ValueError, msgspec.MsgspecError) as error:
        raise _invalid(title, error) from None


def read_header(path: Path) -> SafetensorsHeader:
    """Read a file's header; raises ModelStoreError that names the file."""
    check_file(path)
    try:
        with path.open("rb") as file:
            first = file.read(LENGTH_BYTES)
            return parse_header(
                first + file.read(head_bytes(first, str(path)) - LENGTH_BYTES), str(path)
            )
    except OSError as error:
        raise ModelStoreError(f"{path} cannot be read: {error.strerror}") from None


def _length(first: bytes) -> int:
    if len(first) < LENGTH_BYTES:
        raise ValueError(f"it has {len(first)} bytes")
    length = int.from_bytes(first[:LENGTH_BYTES], "little")
    if length > MAX_HEADER_BYTES:
        raise ValueError(f"its header would have more than {MAX_HEADER_BYTES:,} bytes")
    return length


_Offset = Annotated[int, msgspec.Meta(ge=0, le=_MAX_FILE_BYTES)]


class _Entry(msgspec.Struct):
    """A tensor as the file describes it."""

    dtype: str
    shape: Annotated[tuple[_Offset, ...], msgspec.Meta(max_length=_MAX_DIMENSIONS)]
    data_offsets: tuple[_Offset, _Offset]


_as_object: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_as_metadata: Final = msgspec.json.Decoder(dict[str, str]).decode
_as_entry: Final = msgspec.json.Decoder(_Entry).decode


def _tensors(text: bytes) -> dict[str, TensorEntry]:
    if text.count(b":") > _MAX_COLONS:
        raise ValueError(f"its header has more than {_MAX_COLONS:,} entries")
    entries = _as_object(text)
    _as_metadata(entries.pop(_METADATA, b"{}"))
    tensors = {name: _tensor(name, entry) for name, entry in entries.items()}
    ordered = sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end))
    spans = [("", 0, 0), *((name, entry.begin, entry.end) for name, entry in ordered)]
    for (_, _, before), (name, begin, _) in pairwise(spans):
        if begin != before:
            raise ValueError(f"tensor {name[:80]!r} begins at byte {begin:,} instead of {before:,}")
    return tensors


def _tensor(name: str, raw: Any) -> TensorEntry:
    try:
        entry = _as_entry(raw)
    except msgspec.MsgspecError as error:
        raise ValueError(f"tensor {name[:80]!r}: {error}") from None
    begin, end = entry.data_offsets
    bits = _BITS.get(entry.dtype)
    if bits is None:
        raise ValueError(f"tensor {name[:80]!r} has the unknown dtype {entry.dtype[:20]!r}")
    if (end - begin) * 8 != prod(entry.shape) * bits:
        raise ValueError(
            f"tensor {name[:80]!r} is {entry.dtype} of shape {list(entry.shape)}, but has "
            f"{end - begin:,} bytes"
        )
    return TensorEntry(entry.dtype, entry.shape, begin, end)


def _invalid(title: str, error: Exception) -> ModelStoreError:
    return ModelStoreError(f"{title} is not a safetensors file: {error}")
