"""K/V blocks in pinned host memory, copied beside the steps on a stream of their own.

    save    compute stream: gather blocks into a buffer | copy stream: buffer to host
    load    copy stream: host to a buffer, then into the blocks, after the step before is done

A step that comes after a save overwrites the blocks at once, because the gathered copy is complete
by then. A step that reads loaded blocks waits for their copies; others do not. Copies between
buffers and the host follow one another on one stream, so a place is read and written in the order
of the moves.

A prompt of 40,000 tokens has more than 600 blocks. Each is loaded into a block that is saved just
before, and all copies are enqueued between two steps. So moves are made in batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import torch
from torch import Tensor

from engines.native.backends.base import HostCapacity, Move
from engines.native.backends.cuda.memory.pinned import PinnedPlaces
from engines.native.backends.cuda.memory.transfer import Transfer

STAGING_BYTES: Final = 128 << 20  # of the GPU
_NUM_BUFFERS: Final = 4
_MEASURED: Final = 64  # blocks

Pairs = list[tuple[int, int]]  # place and block, by place


def joined_capacity(parts: Sequence[HostCapacity]) -> HostCapacity:
    """Of a model in parts, whose devices copy side by side."""
    return HostCapacity(
        parts[0].num_blocks,
        sum(each.block_bytes for each in parts),
        max(each.load_s for each in parts),
    )


class CudaHostBlocks:
    """Copies of blocks of several tensors of a device in host memory."""

    def __init__(self, tensors: Sequence[Tensor], num_places: int) -> None:
        """`tensors`: (parts, blocks, values) each; a block is that place of all of them."""
        self._tensors = [each.view(torch.int64) for each in tensors]
        self._widths = [len(each) * each.shape[2] for each in self._tensors]
        self._num_places, words = num_places, sum(self._widths)
        device = tensors[0].device
        self._transfer = Transfer(device)
        self._places = PinnedPlaces(num_places, words, device)
        per_buffer = max(STAGING_BYTES // _NUM_BUFFERS // (8 * words), 1)
        self._buffers = torch.empty(
            (_NUM_BUFFERS, per_buffer, words), dtype=torch.int64, device=device
        )
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._used: list[torch.cuda.Event | None] = [None] * _NUM_BUFFERS
        self._next = 0
        self._loaded: torch.cuda.Event | None = None  # behind loads that no step waited for

    def capacity(self) -> HostCapacity:
        """What there is room for; measures how long copying a block to the device takes.

        No block may be in use yet.
        """
        num = min(_MEASURED, self._num_places, self._tensors[0].shape[1] - 1)
        saves, loads = (
            [Move(1 + place, place, is_save) for place in range(num)] for is_save in (True, False)
        )
        seconds = 0.0
        if self._stream is not None:
            for moves in (saves[:1], saves, loads[:1], loads):  # the first time things are set up
                self.move(moves, is_needed=True)
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            for _ in range(2):
                begin.record(self._current)
                self.move(loads, is_needed=True)
                end.record(self._current)
                end.synchronize()
            seconds = begin.elapsed_time(end) / 1000 / num
        return HostCapacity(self._num_places, 8 * sum(self._widths), seconds)

    @torch.inference_mode()
    def move(self, moves: Sequence[Move], *, is_needed: bool) -> None:
        """Enqueue copies; `is_needed`: the next enqueued step reads the loaded blocks."""
        self._wait_for_loads()  # of the step before
        loaded: set[int] = set()
        for saves, loads in batches(moves, self._buffers.shape[1]):
            if not loaded.isdisjoint(block for _, block in saves):
                self._wait_for_loads()
            loaded.update(block for _, block in loads)
            self._copy(saves, loads)
        if is_needed:
            self._wait_for_loads()

    @property
    def _current(self) -> torch.cuda.Stream:
        return torch.cuda.current_stream(self._transfer.device)

    def _wait_for_loads(self) -> None:
        if self._loaded is not None:
            self._current.wait_event(self._loaded)
            self._loaded = None

    def _copy(self, saves: Pairs, loads: Pairs) -> None:
        """Gather what is saved, and read what is loaded, before either is written over."""
        saved = self._gathered(saves) if saves else None
        before = self._transfer.done()  # what steps still do with the blocks, and the gathering
        with torch.cuda.stream(self._stream):
            loading = self._read(loads) if loads else None
            self._wait_for(before)
            if saved is not None:
                self._write(saves, saved)
            if loading is not None:
                self._scatter(loads, loading)

    def _gathered(self, saves: Pairs) -> int:
        """The number of a buffer with the content of these blocks."""
        number = self._next_buffer()
        self._wait_for(self._used[number])
        index = self._index(saves)
        for tensor, part in self._parts(self._buffers[number, : len(saves)]):
            part.copy_(tensor.index_select(1, index).transpose(0, 1))
        return number

    def _read(self, loads: Pairs) -> int:
        """The number of a buffer with the content of these places."""
        number = self._next_buffer()
        for row, place, num in _runs(loads, self._places.per_piece):
            rows = self._places.rows(place, num)
            self._buffers[number, row : row + num].copy_(rows, non_blocking=True)
        return number

    def _write(self, saves: Pairs, number: int) -> None:
        for row, place, num in _runs(saves, self._places.per_piece):
            rows = self._places.rows(place, num)
            rows.copy_(self._buffers[number, row : row + num], non_blocking=True)
        self._used[number] = self._transfer.done()

    def _scatter(self, loads: Pairs, number: int) -> None:
        index = self._index(loads)
        for tensor, part in self._parts(self._buffers[number, : len(loads)]):
            tensor.index_copy_(1, index, part.transpose(0, 1))
        self._used[number] = self._loaded = self._transfer.done()

    def _wait_for(self, event: torch.cuda.Event | None) -> None:
        """Make the next enqueued work wait; inside `with` of the copies' stream, the copies."""
        if event is not None:
            self._current.wait_event(event)

    def _next_buffer(self) -> int:
        number, self._next = self._next, (self._next + 1) % _NUM_BUFFERS
        return number

    def _index(self, pairs: Pairs) -> Tensor:
        return self._transfer.upload([block for _, block in pairs], torch.int64)

    def _parts(self, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Each tensor beside its part of the rows of a buffer: (blocks, parts, values)."""
        for tensor, part in zip(self._tensors, rows.split(self._widths, 1), strict=True):
            yield tensor, part.unflatten(1, (len(tensor), -1))


def batches(moves: Iterable[Move], size: int) -> Iterator[tuple[Pairs, Pairs]]:
    """Saves and loads that may be made together, at most `size` of each; by place.

    All blocks of a batch are read before one is written, and so are all places. So nothing is
    saved that an earlier move of the batch loads, and nothing is loaded that one saves.
    """
    saves: dict[int, int] = {}  # blocks by place: the last one stays
    loads: dict[int, int] = {}  # places by block
    for block, place, is_save in moves:
        is_full = len(saves if is_save else loads) == size
        if is_full or (block in loads if is_save else place in saves):
            yield _pairs(saves, loads)
            saves, loads = {}, {}
        if is_save:
            saves[place] = block
        else:
            loads[block] = place
    if saves or loads:
        yield _pairs(saves, loads)


def _pairs(saves: dict[int, int], loads: dict[int, int]) -> tuple[Pairs, Pairs]:
    return sorted(saves.items()), sorted((place, block) for block, place in loads.items())


def _runs(pairs: Pairs, per_piece: int) -> Iterator[tuple[int, int, int]]:
    """Row, place and number of places that follow one another in one piece of the host's memory."""
    first = 0
    for row in range(1, len(pairs) + 1):
        place = pairs[first][0]
        if row < len(pairs) and pairs[row][0] == place + row - first and pairs[row][0] % per_piece:
            continue
        yield first, place, row - first
        first = row
