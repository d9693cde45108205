"""Host memory that the GPU copies from and to by itself, pinned piece by piece in a thread.

Pinning takes a second for a few GB, so a large memory is not waited for: its first piece is pinned
at once, the others meanwhile. A copy that needs an unpinned piece waits for it.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import threading
import weakref
from contextlib import suppress
from typing import Final

import torch
from torch import Tensor

PIECE_BYTES: Final = 128 << 20  # pinning one holds other calls of the driver up for as long

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
        self._pinning: _Pinning | None = None
        if device.type != "cuda":
            return
        self._pinning = _Pinning(self._pieces, device)
        weakref.finalize(self, self._pinning.end).atexit = False

    def rows(self, first: int, num: int) -> Tensor:
        piece, row = divmod(first, self.per_piece)
        if self._pinning is not None:
            self._pinning.wait_for(piece)
        return self._pieces[piece][row : row + num]


class _Pinning:
    """Pins pieces in their order: the first at once, the others in a thread."""

    def __init__(self, pieces: list[Tensor], device: torch.device) -> None:
        self._pieces, self._device = pieces, device
        self._num_done = 0
        self._num_pinned = 0
        self._is_ended = False
        self._changed = threading.Condition()
        self._pin_next()
        self._thread = threading.Thread(target=self._run, name="pinning", daemon=True)
        self._thread.start()

    def wait_for(self, piece: int) -> None:
        if piece >= self._num_done:
            with self._changed:
                self._changed.wait_for(lambda: piece < self._num_done or self._is_ended)

    def end(self) -> None:
        """Release what is pinned; nothing copies any more."""
        self._is_ended = True
        self._thread.join()
        for piece in self._pieces[: self._num_pinned]:
            torch.cuda.cudart().cudaHostUnregister(piece.data_ptr())

    def _run(self) -> None:
        torch.cuda.set_device(self._device)
        while self._num_done < len(self._pieces) and not self._is_ended:
            self._pin_next()

    def _pin_next(self) -> None:
        piece = self._pieces[self._num_done]
        if self._num_pinned == self._num_done:  # else the one before could not be
            ctypes.memset(piece.data_ptr(), 0, piece.nbytes)  # takes the pages
            error = torch.cuda.cudart().cudaHostRegister(piece.data_ptr(), piece.nbytes, 0)
            if int(error) == 0:
                self._num_pinned += 1
            else:
                log.warning(
                    "Host memory for K/V blocks cannot be pinned beyond %d bytes (CUDA error %d):"
                    " copies from and to the rest take longer",
                    sum(each.nbytes for each in self._pieces[: self._num_pinned]),
                    int(error),
                )
        with self._changed:
            self._num_done += 1
            self._changed.notify_all()


def _reserve(size: int) -> mmap.mmap:
    """Memory in large pages where the system has them; it is taken when it is written."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
