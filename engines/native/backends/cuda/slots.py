"""What the host knows of the sequences in the slots, and how it brings the device up to date."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from engines.native.backends.base import Batch, Row, SlotStart
from engines.native.backends.cuda.adjust import SlotSampling
from engines.native.backends.cuda.buffers import SlotTensors
from engines.native.backends.cuda.transfer import Transfer

_GREEDY_BELOW: Final = 1e-5  # temperatures under this are greedy


@dataclass(slots=True)
class KnownSlot:
    """What the host knows of the sequence in a slot."""

    token_ids: tuple[int, ...]  # known when it took the slot
    num_prompt_tokens: int
    sampling: SlotSampling
    num_blocks: int = 0  # of its tables


class Slots:
    """The sequences by their slot, and the device's tables of them."""

    def __init__(self, tensors: SlotTensors, vocab_size: int, transfer: Transfer) -> None:
        self._tensors, self._vocab_size, self._transfer = tensors, vocab_size, transfer
        self._known: dict[int, KnownSlot] = {}

    def __getitem__(self, slot: int) -> KnownSlot:
        return self._known[slot]

    def update(self, batch: Batch) -> None:
        """Bring the device's slots up to date: what has changed, in one copy each."""
        places: list[int] = []
        full: list[int] = []
        window: list[int] = []
        for start in batch.starts:
            self._known[start.slot] = KnownSlot(
                start.token_ids,
                start.num_prompt_tokens,
                SlotSampling(start, self._vocab_size, self._transfer.device),
            )
            self._append(start.slot, start, places, full, window)
        for row in batch.rows:
            self._append(row.slot, row, places, full, window)
        if places:
            packed = self._transfer.upload([*places, *full, *window]).view(3, -1)
            index = packed[0].long()
            self._tensors.full_tables.view(-1).index_copy_(0, index, packed[1])
            self._tensors.window_tables.view(-1).index_copy_(0, index, packed[2])
        if batch.starts:
            self._start(batch.starts)

    def _append(
        self,
        slot: int,
        source: SlotStart | Row,
        places: list[int],
        full: list[int],
        window: list[int],
    ) -> None:
        known, num = self._known[slot], len(source.full_blocks)
        first = slot * self._tensors.full_tables.shape[1] + known.num_blocks
        places += range(first, first + num)
        full += source.full_blocks
        window += source.window_blocks
        known.num_blocks += num

    def _start(self, starts: tuple[SlotStart, ...]) -> None:
        slots = self._tensors
        temperatures = [
            0.0 if s.sampling.temperature < _GREEDY_BELOW else s.sampling.temperature
            for s in starts
        ]
        index = self._transfer.upload([s.slot for s in starts]).long()
        slots.token_ids.index_copy_(
            0, index, self._transfer.upload([s.token_ids[-1] for s in starts])
        )
        seeds = [_signed(s.seed) for s in starts]
        slots.seeds.index_copy_(0, index, self._transfer.upload(seeds, torch.int64))
        slots.temperatures.index_copy_(0, index, self._transfer.upload(temperatures, torch.float32))


def _signed(seed: int) -> int:
    """64 bits of a seed as int64 holds them."""
    seed &= (1 << 64) - 1
    return seed - (1 << 64) if seed >> 63 else seed
