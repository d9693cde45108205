"""What requests ask of the sampler beside temperature and seed, by slot, where kernels read it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

import torch
from torch import Tensor

from engines.base import SamplingParams
from engines.native.backends.base import SlotStart
from engines.native.backends.cuda.memory.transfer import Transfer

GREEDY_BELOW: Final = 1e-5  # temperatures under this are greedy
NUMBERS: Final = 6  # of a slot, float32: as in SlotSampling.numbers
WHOLES: Final = 6  # of a slot, int64: as in SlotSampling.wholes
_IN_PROMPT: Final = -(1 << 31)


class SlotSampling:
    """The sampling parameters of one slot, with what of them lives on the device."""

    def __init__(self, start: SlotStart, vocab_size: int, transfer: Transfer) -> None:
        self.params: Final = (params := start.sampling)
        is_greedy = params.temperature < GREEDY_BELOW
        self.is_top_k = not is_greedy and 0 < params.top_k < vocab_size
        self.is_cut = not is_greedy and (params.top_p < 1.0 or params.min_p > 0.0)
        self.is_scored = params.logprobs is not None
        self._biases = _biases(params, transfer)
        self._counts = _counts(start, vocab_size, transfer)
        is_filtered, is_changed = self.is_top_k or self.is_cut, self.is_biased or self.is_penalised
        self.is_plain = not (is_filtered or self.is_scored or is_changed)  # the draw alone knows it

    @property
    def is_biased(self) -> bool:
        return self._biases is not None

    @property
    def is_penalised(self) -> bool:
        return self._counts is not None

    @property
    def numbers(self) -> tuple[float, ...]:
        p = self.params
        return (
            p.top_p,
            math.log(p.min_p) if p.min_p > 0 else -math.inf,
            p.repetition_penalty,
            1 / p.repetition_penalty,
            p.frequency_penalty,
            p.presence_penalty,
        )

    @property
    def wholes(self) -> tuple[int, ...]:
        ids, values = self._biases or (None, None)
        return (
            self.params.top_k if self.is_top_k else 0,
            -1 if self.params.logprobs is None else self.params.logprobs,
            0 if self._counts is None else self._counts.data_ptr(),
            0 if ids is None else ids.data_ptr(),
            0 if values is None else values.data_ptr(),
            len(self.params.logit_bias),
        )


class SlotFields:
    """The numbers of all slots; the kernels of filters, penalties and logprobs name the columns."""

    def __init__(self, num_slots: int, transfer: Transfer) -> None:
        self._transfer, device = transfer, transfer.device
        plain = torch.tensor([1.0, -math.inf, 1.0, 1.0, 0.0, 0.0], device=device)
        self.numbers = plain.repeat(num_slots, 1)
        self.wholes = torch.tensor([0, -1, 0, 0, 0, 0], device=device).repeat(num_slots, 1)
        self._told: set[int] = set()  # slots whose numbers are not those of a plain request

    def set(self, slots: Iterable[tuple[int, SlotSampling]]) -> None:
        """Enqueue the numbers of slots that are taken; plain ones in place of plain ones cost
        nothing."""
        new = [(n, each) for n, each in slots if not each.is_plain or n in self._told]
        if not new:
            return
        self._told -= {n for n, _ in new}
        self._told |= {n for n, each in new if not each.is_plain}
        to_device = self._transfer.to_device
        index = to_device(torch.tensor([n for n, _ in new]))
        numbers = torch.tensor([each.numbers for _, each in new], dtype=torch.float32)
        wholes = torch.tensor([each.wholes for _, each in new])
        self.numbers.index_copy_(0, index, to_device(numbers))
        self.wholes.index_copy_(0, index, to_device(wholes))


def _biases(params: SamplingParams, transfer: Transfer) -> tuple[Tensor, Tensor] | None:
    if not params.logit_bias:
        return None
    ids = transfer.upload([*params.logit_bias])
    return ids, transfer.upload([*params.logit_bias.values()], torch.float32)


def _counts(start: SlotStart, vocab_size: int, transfer: Transfer) -> Tensor | None:
    """(vocabulary) int32: how often a token is in the answer; negative if in the prompt too."""
    p = start.sampling
    if not (p.presence_penalty or p.frequency_penalty or p.repetition_penalty != 1.0):
        return None
    counts = torch.zeros(vocab_size, dtype=torch.int32, device=transfer.device)
    ids = transfer.upload([*start.token_ids], torch.int64)
    counts.index_fill_(0, ids[: start.num_prompt_tokens], _IN_PROMPT)
    answered = ids[start.num_prompt_tokens :]
    counts.index_add_(0, answered, torch.ones_like(answered, dtype=torch.int32))
    return counts
