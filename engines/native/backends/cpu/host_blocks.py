"""Where the CPU backend copies evicted K/V blocks to: a second place in the same memory."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from engines.native.backends.base import HostCapacity, Move
from engines.native.backends.cpu.attention import zeros

_MEASURED = 16  # blocks


class CpuHostBlocks:
    """Keeps copies of blocks of several tensors."""

    def __init__(self, tensors: Sequence[Tensor], num_places: int) -> None:
        """`tensors`: (parts, blocks, values) each; a block is that place of all of them."""
        device = torch.device("cpu")
        self._tensors = tensors
        self._copies = [
            zeros((num_places, len(each), each.shape[2]), each.dtype, device) for each in tensors
        ]
        self._num_places = num_places

    def capacity(self) -> HostCapacity:
        num = min(_MEASURED, self._num_places)
        begun_s = time.perf_counter()
        self.move(Move(0, place, is_save=False) for place in range(num))
        seconds = (time.perf_counter() - begun_s) / num
        return HostCapacity(self._num_places, sum(c[0].nbytes for c in self._copies), seconds)

    def move(self, moves: Iterable[Move]) -> None:
        for block, place, is_save in moves:
            for tensor, copies in zip(self._tensors, self._copies, strict=True):
                if is_save:
                    copies[place].copy_(tensor[:, block])
                else:
                    tensor[:, block].copy_(copies[place])
