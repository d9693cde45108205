"""The draw of a step's next tokens: the stages that its rows ask for, as graphs that all share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from engines.native.backends.base import Row, TokenMask, TokenMasks
from engines.native.backends.cuda.graphs.captured import Graphs
from engines.native.backends.cuda.memory.transfer import Transfer
from engines.native.backends.cuda.sampling.outcome import Token, logprobs_of
from engines.native.backends.cuda.sampling.sampler import OUT, Sampler
from engines.native.backends.cuda.sampling.slots import KnownSlot, SampledSlots


class StageGraphs:
    """The graphs of one sampler's stages."""

    def __init__(self, sampler: Sampler, sizes: set[int], device: torch.device) -> None:
        def graphs(launch: Callable[[int], None]) -> Callable[[int], None]:
            return Graphs({n: partial(launch, n) for n in sizes}, device).run

        self.find_tops = graphs(sampler.find_tops)
        self.exclude = graphs(sampler.exclude)
        self.bias = graphs(sampler.bias)
        self.penalise = graphs(sampler.penalise)
        self.find_top_k = graphs(sampler.find_top_k)
        self.find_floors = graphs(sampler.find_floors)
        self.draw = graphs(sampler.run)
        self.count = graphs(sampler.count)
        self.tell = graphs(sampler.tell)


@dataclass(slots=True)
class Draw:
    """Rows that one sampler samples, by their index in the batch."""

    sampler: Sampler
    rows: list[int]
    slots: list[KnownSlot]
    tokens: Tensor | None = None  # on the host, once the step is done
    told: Tensor | None = None  # the same: Sampler.told, where a row wants log-probabilities
    accept: Callable[[int], None] | None = None  # work after the draw, where rows are drafts

    def drawn(self) -> list[Token]:
        """What each row has brought, once the step is done."""
        assert self.tokens is not None
        ids = self.tokens.tolist()
        if self.told is None:
            return [(token, None) for token in ids]
        nums = [slot.sampling.params.logprobs for slot in self.slots]
        return [*zip(ids, logprobs_of(ids, self.told, nums), strict=True)]


class Draws:
    """Prepares draws and enqueues them."""

    def __init__(
        self,
        samplers: tuple[Sampler, ...],
        sizes: set[int],
        slots: SampledSlots,
        transfer: Transfer,
    ) -> None:
        """`sizes`: of the steps whose rows are drawn."""
        self._slots, self._transfer = slots, transfer
        self._stages = {id(each): StageGraphs(each, sizes, transfer.device) for each in samplers}

    def prepare(self, sampler: Sampler, rows: list[Row], indices: list[int]) -> Draw:
        slots = [self._slots[row.slot] for row in rows]
        num = len(sampler.rows.slots)
        packed = torch.zeros((3, num), dtype=torch.int32)
        if rows:
            packed[:, : len(rows)] = torch.tensor(
                [
                    [row.slot for row in rows],
                    [row.start for row in rows],
                    [
                        row.end - slot.num_prompt_tokens
                        for row, slot in zip(rows, slots, strict=True)
                    ],
                ]
            )
        count = torch.tensor([len(rows)], dtype=torch.int32)
        self._transfer.fill(sampler.rows.copies, torch.cat((count, packed.flatten())))
        return Draw(sampler, indices, slots)

    def enqueue(self, draws: Sequence[Draw], masks: Mapping[int, TokenMasks]) -> None:
        """Enqueue the sampling of a step's rows; `masks` by the row of the batch."""
        for draw in draws:
            self._enqueue(draw, masks)
        if draws:
            self._slots.return_tokens()

    def _enqueue(self, draw: Draw, masks: Mapping[int, TokenMasks]) -> None:
        sampler, num, stages = draw.sampler, len(draw.rows), self._stages[id(draw.sampler)]
        asked = [slot.sampling for slot in draw.slots if not slot.sampling.is_plain]
        is_penalised = any(each.is_penalised for each in asked)
        is_top_k, is_cut = any(each.is_top_k for each in asked), any(each.is_cut for each in asked)
        is_scored = any(each.is_scored for each in asked)
        if is_scored:
            kept = self._keep_own_logits(draw)  # until all is enqueued, behind which it may go
            stages.find_tops(num)
        if of_place := _by_place(draw, masks):
            words = sampler.set_masks(of_place, num, self._transfer)  # as long as `kept`
            stages.exclude(num)
        if any(each.is_biased for each in asked):
            stages.bias(num)
        if is_penalised:
            stages.penalise(num)
        if is_top_k:
            stages.find_top_k(num)
        if is_cut:
            stages.find_floors(num)
        stages.draw(num)
        if draw.accept is not None:
            draw.accept(num)
        if is_top_k or is_cut:
            sampler.floors.fill_(OUT)
        if is_penalised:
            stages.count(num)
        if is_scored:
            stages.tell(num)
            draw.told = self._transfer.to_host(sampler.told[:num])
            del kept
        if of_place:
            del words
        draw.tokens = self._transfer.to_host(sampler.rows.sampled[:num])

    def _keep_own_logits(self, draw: Draw) -> Tensor:
        """Have `find_tops` copy the rows that want the model's logits and whose logits change."""
        places = [
            place
            for place, slot in enumerate(draw.slots)
            if slot.sampling.is_scored and (slot.sampling.is_biased or slot.sampling.is_penalised)
        ]
        logits, addresses = draw.sampler.logits, [0] * len(draw.slots)
        kept = logits.new_empty((len(places), logits.shape[1]))
        for row, place in zip(kept, places, strict=True):
            addresses[place] = row.data_ptr()
        draw.sampler.copies[: len(addresses)] = self._transfer.upload(addresses, torch.int64)
        return kept


def _by_place(draw: Draw, masks: Mapping[int, TokenMasks]) -> dict[int, TokenMask]:
    """The masks of a draw's rows, by their place in it; a row's drafts are the next places."""
    first: dict[int, int] = {}
    return {
        place: masks[row][place - first.setdefault(row, place)]
        for place, row in enumerate(draw.rows if masks else ())
        if row in masks
    }
