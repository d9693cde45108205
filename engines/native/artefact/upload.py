"""Tensors of safetensors files to a device, with disk, host and device at work at once.

Each of some threads has its own pinned buffer and repeats: read a piece of a file
into it, copy it to the device. While one copies, others read. From the page cache to an H100 that
is 26 GB/s, reading or mapping the files alike; plain copies of mapped tensors make 6.5.
`upload` reads files, `Uploads` takes mapped tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from math import prod
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import local
from types import TracebackType
from typing import Final, Self

import numpy as np
import torch
from torch import Tensor

from engines.native.artefact.store import Damaged
from engines.native.shard_header import read_header

NUM_THREADS: Final = 8
BUFFER_BYTES: Final = 8 << 20
_LEAST_BYTES: Final = 1 << 20  # a smaller tensor is copied as it is
_DTYPES: Final = {"BF16": torch.bfloat16, "I32": torch.int32, "F32": torch.float32}


@dataclass(frozen=True, slots=True)
class _Piece:
    """Bytes of a file and where they go."""

    path: Path
    offset: int
    target: Tensor  # uint8, on the device


def upload(
    paths: Iterable[Path], device: torch.device, is_wanted: Callable[[str], bool]
) -> dict[str, Tensor]:
    """Read those tensors of the files to a device whose names are wanted, by name; raises Damaged
    for a file that is cut short."""
    tensors: dict[str, Tensor] = {}
    pieces: SimpleQueue[_Piece] = SimpleQueue()
    largest = 0
    for path in paths:
        for name, tensor, offset in _allocated(path, device, is_wanted):
            tensors[name] = tensor
            for piece in _pieces(path, offset, tensor):
                pieces.put(piece)
                largest = max(largest, len(piece.target))
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # nothing still uses the memory that was taken
    with ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="upload") as threads:
        working = [threads.submit(_work, pieces, largest, device) for _ in range(NUM_THREADS)]
        for done in working:
            done.result()
    return tensors


class Uploads:
    """Copies of tensors in host memory to a device, begun before they are needed.

    A block: its threads and their pinned buffers go with it.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._is_cuda = device, device.type == "cuda"
        self._own = local()  # of each thread: its buffer and its stream
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="upload")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._threads.shutdown(cancel_futures=True)

    def begin(self, tensor: Tensor) -> Arriving:
        """Begin to copy it; it has to stay as it is until it has arrived."""
        if not self._is_cuda or tensor.nbytes < _LEAST_BYTES or not tensor.is_contiguous():
            return Arriving(tensor.to(self._device), [])
        target = torch.empty(tensor.shape, dtype=tensor.dtype, device=self._device)
        # What used this memory before may still run.
        is_free = torch.cuda.current_stream(self._device).record_event()
        source, to = (each.view(-1).view(torch.uint8) for each in (tensor, target))
        pieces = zip(source.split(BUFFER_BYTES), to.split(BUFFER_BYTES), strict=True)
        return Arriving(
            target, [self._threads.submit(self._copy, *each, is_free) for each in pieces]
        )

    def _copy(self, source: Tensor, target: Tensor, is_free: torch.cuda.Event) -> None:
        own = self._own
        if not hasattr(own, "buffer"):
            own.buffer = torch.empty(BUFFER_BYTES, dtype=torch.uint8, pin_memory=True)
            own.stream = torch.cuda.Stream(self._device)
        part = own.buffer[: len(source)]
        np.copyto(part.numpy(), source.numpy())  # torch would have a pool of threads for each
        own.stream.wait_event(is_free)
        with torch.cuda.stream(own.stream):
            target.copy_(part, non_blocking=True)
        own.stream.synchronize()


@dataclass(frozen=True, slots=True)
class Arriving:
    """A copy that is on its way."""

    _target: Tensor
    _pieces: list[Future[None]]

    def arrived(self) -> Tensor:
        """The tensor on the device, once all of it is there."""
        for piece in self._pieces:
            piece.result()
        return self._target


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A copy of a tensor in host memory on a device."""
    with Uploads(device) as uploads:
        return uploads.begin(tensor).arrived()


def _allocated(
    path: Path, device: torch.device, is_wanted: Callable[[str], bool]
) -> Iterator[tuple[str, Tensor, int]]:
    """Each wanted tensor of a file: its name, room for it, and where in the file it begins."""
    try:
        _, entries, data = read_header(path)
        described = [
            (name, tuple(entry["shape"]), _DTYPES[entry["dtype"]], *entry["data_offsets"])
            for name, entry in entries.items()
        ]
        num_bytes = path.stat().st_size - data
        for name, shape, dtype, begin, end in described:
            if not 0 <= begin <= end <= num_bytes or end - begin != prod(shape) * dtype.itemsize:
                raise ValueError(f"tensor {name} is not in bytes {begin} to {end}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Damaged(f"{path.name}: {error!r}") from error
    for name, shape, dtype, begin, _ in described:
        if is_wanted(name):
            yield name, torch.empty(shape, dtype=dtype, device=device), data + begin


def _pieces(path: Path, offset: int, tensor: Tensor) -> Iterator[_Piece]:
    flat = tensor.view(-1).view(torch.uint8)
    for first in range(0, len(flat), BUFFER_BYTES):
        yield _Piece(path, offset + first, flat[first : first + BUFFER_BYTES])


def _work(pieces: SimpleQueue[_Piece], buffer_bytes: int, device: torch.device) -> None:
    is_cuda = device.type == "cuda"
    buffer = torch.empty(buffer_bytes, dtype=torch.uint8, pin_memory=is_cuda)
    stream = torch.cuda.Stream(device) if is_cuda else None
    with torch.cuda.stream(stream) if stream is not None else nullcontext():
        while True:
            try:
                piece = pieces.get_nowait()
            except Empty:
                return
            part = buffer[: len(piece.target)]
            _read(piece, part.numpy().data)
            piece.target.copy_(part, non_blocking=True)
            if stream is not None:
                stream.synchronize()


def _read(piece: _Piece, view: memoryview) -> None:
    with piece.path.open("rb", buffering=0) as file:
        file.seek(piece.offset)
        while view:
            number = file.readinto(view)
            if not number:
                raise Damaged(f"{piece.path.name} is truncated")
            view = view[number:]
