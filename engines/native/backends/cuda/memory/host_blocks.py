"""K/V blocks in pinned host memory, copied beside the steps on a stream of their own.

    save    compute stream: gather blocks into a buffer | copy stream: buffer to host
    load    copy stream: host to a buffer, then into the blocks, after the step before is done

A step that comes after a save overwrites the blocks at once, because the gathered copy is complete
by then. A step that reads loaded blocks waits for their copies; others do not. Copies between
buffers and the host follow one another on one stream, so a place is read and written in the order
of the moves.

A prompt of 40,000 tokens has more than 600 blocks, and its copies are enqueued between two steps.
So buffers are large, and the numbers of all blocks are copied to the device at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

import torch
from torch import Tensor

from engines.native.backends.base import HostCapacity, Move
from engines.native.backends.cuda.memory.pinned import PinnedPlaces
from engines.native.backends.cuda.memory.transfer import Transfer

STAGING_BYTES: Final = 128 << 20  # of the GPU
_NUM_BUFFERS: Final = 2
_MEASURED: Final = 64  # blocks


def joined_capacity(parts: Sequence[HostCapacity]) -> HostCapacity:
    """Of a model in parts, whose devices copy side by side."""
    return HostCapacity(
        parts[0].num_blocks,
        sum(each.block_bytes for each in parts),
        max(each.load_s for each in parts),
    )


class HostBlocks:
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
        loads = [Move(1 + place, place, is_save=False) for place in range(num)]
        seconds = 0.0
        if self._stream is not None:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            for _ in range(2):  # the first time things are set up
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
        for is_save, group in groupby(moves, key=lambda move: move.is_save):
            if is_save:
                self._wait_for_loads()
                places = {move.place: move.block for move in group}  # the last one stays
                self._save(sorted(places.items()))
            else:
                blocks = {move.block: move.place for move in group}
                self._load(sorted((place, block) for block, place in blocks.items()))
        if is_needed:
            self._wait_for_loads()

    @property
    def _current(self) -> torch.cuda.Stream:
        return torch.cuda.current_stream(self._transfer.device)

    def _wait_for_loads(self) -> None:
        if self._loaded is not None:
            self._current.wait_event(self._loaded)
            self._loaded = None

    def _save(self, pairs: list[tuple[int, int]]) -> None:
        for piece, index in self._by_buffer(pairs):
            number, buffer = self._buffer()
            self._wait_for(self._used[number])
            for tensor, part in self._parts(buffer[: len(piece)]):
                part.copy_(tensor.index_select(1, index).transpose(0, 1))
            gathered = self._transfer.done()
            with torch.cuda.stream(self._stream):
                self._wait_for(gathered)
                for row, place, num in _runs(piece, self._places.per_piece):
                    rows = self._places.rows(place, num)
                    rows.copy_(buffer[row : row + num], non_blocking=True)
                self._used[number] = self._transfer.done()

    def _load(self, pairs: list[tuple[int, int]]) -> None:
        before = self._transfer.done()  # what the step before still does with these blocks
        with torch.cuda.stream(self._stream):
            for piece, index in self._by_buffer(pairs):
                number, buffer = self._buffer()
                for row, place, num in _runs(piece, self._places.per_piece):
                    rows = self._places.rows(place, num)
                    buffer[row : row + num].copy_(rows, non_blocking=True)
                self._wait_for(before)
                for tensor, part in self._parts(buffer[: len(piece)]):
                    tensor.index_copy_(1, index, part.transpose(0, 1))
                self._used[number] = self._loaded = self._transfer.done()

    def _wait_for(self, event: torch.cuda.Event | None) -> None:
        """Make the next enqueued work wait; inside `with` of the copies' stream, the copies."""
        if event is not None:
            self._current.wait_event(event)

    def _by_buffer(
        self, pairs: list[tuple[int, int]]
    ) -> Iterator[tuple[list[tuple[int, int]], Tensor]]:
        """As many pairs as a buffer holds, with their blocks' numbers on the device."""
        size = self._buffers.shape[1]
        blocks = self._transfer.upload([block for _, block in pairs], torch.int64)
        for at, index in zip(range(0, len(pairs), size), blocks.split(size), strict=True):
            yield pairs[at : at + size], index

    def _buffer(self) -> tuple[int, Tensor]:
        number, self._next = self._next, (self._next + 1) % _NUM_BUFFERS
        return number, self._buffers[number]

    def _parts(self, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Each tensor beside its part of the rows of a buffer: (blocks, parts, values)."""
        for tensor, part in zip(self._tensors, rows.split(self._widths, 1), strict=True):
            yield tensor, part.unflatten(1, (len(tensor), -1))


def _runs(pairs: Sequence[tuple[int, int]], per_piece: int) -> Iterator[tuple[int, int, int]]:
    """Row, place and number of places that follow one another in one piece of the host's memory."""
    first = 0
    for row in range(1, len(pairs) + 1):
        place = pairs[first][0]
        if row < len(pairs) and pairs[row][0] == place + row - first and pairs[row][0] % per_piece:
            continue
        yield first, place, row - first
        first = row
