"""Host memory that the GPU copies from and to by itself, pinned in pieces before it is used.

Not later, beside the steps: each call that pins waits for the device, and delays other calls of
the driver. Most of the time is the system's, which clears the pages. Several threads do that.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

import torch
from torch import Tensor

PIECE_BYTES: Final = 128 << 20
_MOST_THREADS: Final = 8

log = logging.getLogger(__name__)


class PinnedPlaces:
    """Places of equal size, as rows of pieces that are each one range of pinned memory."""

    def __init__(self, num_places: int, words: int, device: torch.device) -> None:
        """`words`: int64 numbers in a place. On a CPU nothing is pinned."""
        self.per_piece = max(PIECE_BYTES // (8 * words), 1)
        sizes = [
            min(self.per_piece, num_places - at) for at in range(0, num_places, self.per_piece)
        ]
        buffers = [_reserve(8 * words * size) for size in sizes]
        self._pieces = [
            torch.frombuffer(each, dtype=torch.int64).view(-1, words) for each in buffers
        ]
        if device.type == "cuda":
            pinned = _pin(self._pieces)
            weakref.finalize(self, _release, pinned).atexit = False

    def rows(self, first: int, num: int) -> Tensor:
        piece, row = divmod(first, self.per_piece)
        return self._pieces[piece][row : row + num]


def _pin(pieces: Sequence[Tensor]) -> list[Tensor]:
    """Pin the pieces in their order; returns those that could be."""
    begun_s = time.monotonic()
    pinned: list[Tensor] = []
    threads = ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1), "pinning")
    taken = [threads.submit(_take_pages, piece) for piece in pieces]
    for piece, is_taken in zip(pieces, taken, strict=True):
        is_taken.result()
        error = int(torch.cuda.cudart().cudaHostRegister(piece.data_ptr(), piece.nbytes, 0))
        if error:
            log.warning(
                "Host memory for K/V blocks cannot be pinned beyond %d bytes (CUDA error %d):"
                " copies from and to the rest take longer",
                *(sum(each.nbytes for each in pinned), error),
            )
            break
        pinned.append(piece)
    threads.shutdown(cancel_futures=True)
    size, seconds = sum(each.nbytes for each in pinned), time.monotonic() - begun_s
    log.info("%.1f GB of host memory for K/V blocks were pinned in %.1f s", size / 1e9, seconds)
    return pinned


def _take_pages(piece: Tensor) -> None:
    ctypes.memset(piece.data_ptr(), 0, piece.nbytes)


def _release(pinned: Sequence[Tensor]) -> None:
    """Nothing copies any more."""
    for piece in pinned:
        torch.cuda.cudart().cudaHostUnregister(piece.data_ptr())


def _reserve(size: int) -> mmap.mmap:
    """Memory in large pages where the system has them; it is taken when it is written."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
