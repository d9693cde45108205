"""One tensor of a file, mapped into memory if it is large: its own bytes, not the file's.

The safetensors library maps the whole file for writing, which the kernel refuses for files larger
than the machine's memory, as merged checkpoints in one file are. Pages without a write
are the file's, and the kernel drops them as it needs.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

DTYPES: Final = {
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "U8": torch.uint8,
}
_MAPPED_BYTES: Final = 1 << 20  # smaller ones are read: each mapping keeps a file open


def mapped_tensor(
    path: Path, begin: int, dtype: torch.dtype, shape: Sequence[int], *, is_read: bool = False
) -> Tensor:
    """The tensor whose bytes begin at `begin`; OSError or ValueError if they are not all there.

    `is_read`: in any case. A file that is cut off later ends the process that has mapped it.
    """
    num_bytes = prod(shape) * dtype.itemsize
    if is_read or num_bytes < _MAPPED_BYTES:
        return _read(path, begin, num_bytes).view(dtype).view(tuple(shape))
    page = begin - begin % mmap.ALLOCATIONGRANULARITY
    offset = begin - page
    with path.open("rb") as file:
        view = mmap.mmap(file.fileno(), offset + num_bytes, access=mmap.ACCESS_COPY, offset=page)
    flat = torch.frombuffer(view, dtype=torch.uint8, count=num_bytes, offset=offset)
    if offset % dtype.itemsize:  # a header whose length is odd
        flat = flat.clone()
    return flat.view(dtype).view(tuple(shape))


def _read(path: Path, begin: int, num_bytes: int) -> Tensor:
    flat = torch.empty(num_bytes, dtype=torch.uint8)
    with path.open("rb") as file:
        file.seek(begin)
        if file.readinto(flat.numpy().data) < num_bytes:
            raise ValueError("the file ends before it")
    return flat
