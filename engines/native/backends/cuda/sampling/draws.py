"""The draw of a step's next tokens: what single rows ask for, and the graphs that all share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from engines.native.backends.base import Row, TokenMasks
from engines.native.backends.cuda.graphs.captured import Graphs
from engines.native.backends.cuda.memory.transfer import Transfer
from engines.native.backends.cuda.sampling.adjust import OUT, exclude, floors
from engines.native.backends.cuda.sampling.sampler import Sampler
from engines.native.backends.cuda.sampling.slots import KnownSlot, Slots


@dataclass(slots=True)
class Draw:
    """Rows that one sampler samples, by their index in the batch."""

    sampler: Sampler
    rows: list[int]
    slots: list[KnownSlot]
    tokens: Tensor | None = None  # on the host, once the step is done
    logprobs: dict[int, tuple[Tensor, ...]] = field(default_factory=dict)  # by place
    accept: Callable[[int], None] | None = None  # work after the draw, where rows are drafts


class Draws:
    """Prepares draws and enqueues them."""

    def __init__(
        self, samplers: tuple[Sampler, ...], sizes: set[int], slots: Slots, transfer: Transfer
    ) -> None:
        """`sizes`: of the steps whose rows are drawn."""
        self._slots, self._transfer = slots, transfer
        self._graphs = {
            id(sampler): Graphs({n: partial(sampler.run, n) for n in sizes}, transfer.device)
            for sampler in samplers
        }

    def prepare(self, sampler: Sampler, rows: list[Row], indices: list[int]) -> Draw:
        """Tell a sampler its rows; `indices` of them in the batch."""
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
        sampler, num = draw.sampler, len(draw.rows)
        logits = sampler.logits
        for place, (row, slot) in enumerate(zip(draw.rows, draw.slots, strict=True)):
            if slot.sampling.params.logprobs is not None:
                draw.logprobs[place] = (torch.log_softmax(logits[place], 0),)
            if row in masks:
                exclude(logits[place], masks[row][place - draw.rows.index(row)])
            if slot.sampling.is_biased:
                slot.sampling.bias(logits[place])
        filtered = [i for i, slot in enumerate(draw.slots) if slot.sampling.is_filtered]
        if filtered:
            index = self._transfer.upload(filtered).long()
            params = [draw.slots[i].sampling.params for i in filtered]
            sampler.floors[index] = floors(logits[index], params)
        self._graphs[id(sampler)].run(num)
        if draw.accept is not None:
            draw.accept(num)
        if filtered:
            sampler.floors.fill_(OUT)
        tokens = sampler.rows.sampled[:num].clone()
        for place, slot in enumerate(draw.slots):
            if slot.sampling.is_biased:
                slot.sampling.count(tokens[place : place + 1])
        for place, (values,) in draw.logprobs.items():
            top = values.topk(draw.slots[place].sampling.params.logprobs or 0)
            chosen = values[tokens[place].clamp(min=0).long()]
            draw.logprobs[place] = tuple(
                self._transfer.to_host(t) for t in (chosen, top.indices, top.values)
            )
        draw.tokens = self._transfer.to_host(tokens)
