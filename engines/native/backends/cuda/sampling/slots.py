"""What the host knows of the sequences in the slots, and how it brings the device up to date."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from engines.native.backends.base import Batch, Row, SlotStart
from engines.native.backends.cuda.memory.transfer import Transfer
from engines.native.backends.cuda.sampling.fields import GREEDY_BELOW, SlotFields, SlotSampling
from engines.native.backends.cuda.steps.buffers import SlotTensors


@dataclass(slots=True)
class KnownSlot:
    """What the host knows of the sequence in a slot."""

    token_ids: tuple[int, ...]  # known when it took the slot
    num_prompt_tokens: int
    sampling: SlotSampling
    adapter: int = -1  # its place; -1: none
    num_blocks: int = 0  # of its tables


class SampledSlots:
    """The sequences by their slot, and each stage's tables of them."""

    def __init__(
        self, tensors: Sequence[SlotTensors], first: SlotTensors, vocab_size: int,
        transfer: Transfer, place_of: Callable[[str], int] | None = None,
    ) -> None:  # fmt: skip
        """`tensors`: of each stage; tokens are sampled into the last one's, read from `first`.
        `place_of` an adapter, where there are some."""
        self._tensors, self._first = tensors, first
        self._vocab_size, self._transfer, self._place_of = vocab_size, transfer, place_of
        self.fields = SlotFields(len(tensors[-1].token_ids), transfer)
        self._stride = tensors[0].full_tables.shape[1]
        self._known: dict[int, KnownSlot] = {}
        self._adapted: set[int] = set()  # slots

    def __getitem__(self, slot: int) -> KnownSlot:
        return self._known[slot]

    def are_adapted(self, rows: Sequence[Row]) -> bool:
        """Whether a row asks for an adapter."""
        return bool(self._adapted) and any(row.slot in self._adapted for row in rows)

    def update(self, batch: Batch) -> None:
        """Bring the device's slots up to date: what has changed, in one copy each."""
        places: list[int] = []
        full: list[int] = []
        window: list[int] = []
        for start in batch.starts:
            self._known[start.slot] = KnownSlot(
                start.token_ids,
                start.num_prompt_tokens,
                SlotSampling(start, self._vocab_size, self._transfer),
            )
            self._adapt(start)
            self._append(start.slot, start, places, full, window)
        for row in batch.rows:
            if row.full_blocks:  # of most rows there are none
                self._append(row.slot, row, places, full, window)
        if places:
            host = torch.tensor([places, full, window], dtype=torch.int32)
            for slots in self._tensors:
                packed = self._transfer.to_device(host, slots.token_ids.device)
                index = packed[0].long()
                slots.full_tables.view(-1).index_copy_(0, index, packed[1])
                slots.window_tables.view(-1).index_copy_(0, index, packed[2])
        if batch.starts:
            self._start(batch.starts)
            self.fields.set((each.slot, self[each.slot].sampling) for each in batch.starts)

    def _append(
        self,
        slot: int,
        source: SlotStart | Row,
        places: list[int],
        full: list[int],
        window: list[int],
    ) -> None:
        known, num = self._known[slot], len(source.full_blocks)
        first = slot * self._stride + known.num_blocks
        places += range(first, first + num)
        full += source.full_blocks
        window += source.window_blocks
        known.num_blocks += num

    def _adapt(self, start: SlotStart) -> None:
        self._adapted.discard(start.slot)
        if start.adapter is not None:
            assert self._place_of is not None, "no other engine gets such requests"
            self._known[start.slot].adapter = self._place_of(start.adapter)
            self._adapted.add(start.slot)

    def _start(self, starts: tuple[SlotStart, ...]) -> None:
        temperatures = torch.tensor(
            [
                0.0 if s.sampling.temperature < GREEDY_BELOW else s.sampling.temperature
                for s in starts
            ]
        )
        known = torch.tensor(
            [
                (s.slot, s.token_ids[-1], _signed(s.seed), self._known[s.slot].adapter)
                for s in starts
            ]
        )
        for slots in self._tensors:
            device = slots.token_ids.device
            index, tokens, seeds, places = self._transfer.to_device(known.t().contiguous(), device)
            slots.token_ids.index_copy_(0, index, tokens.int())
            slots.seeds.index_copy_(0, index, seeds)
            slots.temperatures.index_copy_(0, index, self._transfer.to_device(temperatures, device))
            if slots.adapters is not None:
                slots.adapters.index_copy_(0, index, places.int())

    def return_tokens(self) -> None:
        """Enqueue that the tokens which the last stage has sampled come to where they are read."""
        first, last = self._first, self._tensors[-1]
        if first is not last:
            first.token_ids.copy_(last.token_ids, non_blocking=True)


def _signed(seed: int) -> int:
    """The seed's 64 bits as an int64."""
    seed &= (1 << 64) - 1
    return seed - (1 << 64) if seed >> 63 else seed
