"""A sampler whose rows have logits and parameters of their own, and what plain torch makes of
them."""

from __future__ import annotations

import torch
from torch import Tensor

from engines.base import SamplingParams
from engines.native.backends.base import SlotStart
from tests.engines.native.cuda.kernels.kernel_fixtures import DEVICE

from engines.native.backends.cuda.memory.transfer import Transfer  # isort: skip
from engines.native.backends.cuda.sampling.fields import SlotFields, SlotSampling  # isort: skip
from engines.native.backends.cuda.sampling.sampler import Sampler  # isort: skip
from engines.native.backends.cuda.steps.buffers import Rows, SlotTensors  # isort: skip


class SamplerCase:
    """One slot and one row for each of `params`, or all rows for one; all have the same tokens."""

    def __init__(
        self,
        logits: Tensor,
        params: list[SamplingParams],
        token_ids: tuple[int, ...] = (0,),
        num_prompt_tokens: int = 1,
    ) -> None:
        (num, vocab_size), num_slots = logits.shape, len(params)
        transfer = Transfer(DEVICE)
        slots = SlotTensors.allocate(num_slots, 1, DEVICE)
        slots.temperatures.copy_(torch.tensor([p.temperature for p in params]))
        self.asked = [
            SlotSampling(
                SlotStart(slot, token_ids, num_prompt_tokens, (), (), each, 0), vocab_size, transfer
            )
            for slot, each in enumerate(params)
        ]
        fields = SlotFields(num_slots, transfer)
        fields.set(enumerate(self.asked))
        self.sampler = sampler = Sampler(Rows(num, DEVICE), slots, fields, vocab_size)
        self.num = num
        sampler.logits.copy_(logits)
        sampler.rows.num_rows.fill_(num)
        sampler.rows.slots.copy_(torch.arange(num) % num_slots)

    def adjust(self) -> Tensor:
        """The logits after logit_bias and penalties."""
        self.sampler.bias(self.num)
        self.sampler.penalise(self.num)
        return self.sampler.logits

    def floors(self) -> Tensor:
        """Each row's floor, of the logits as they are now."""
        self.sampler.find_top_k(self.num)
        self.sampler.find_floors(self.num)
        return self.sampler.floors


def adjusted(
    logits: Tensor, params: SamplingParams, token_ids: tuple[int, ...], num_prompt_tokens: int
) -> Tensor:
    """One row after logit_bias and penalties."""
    logits, ids = logits.clone(), torch.tensor(token_ids, device=logits.device)
    if params.logit_bias:
        biased = torch.tensor([*params.logit_bias], device=logits.device)
        logits[biased] += torch.tensor([*params.logit_bias.values()], device=logits.device)
    seen = torch.zeros(len(logits), dtype=torch.bool, device=logits.device)
    seen[ids] = True
    counts = torch.bincount(ids[num_prompt_tokens:], minlength=len(logits)).float()
    penalty = params.repetition_penalty
    logits = torch.where(seen, logits * torch.where(logits > 0, 1 / penalty, penalty), logits)
    logits -= params.frequency_penalty * counts + params.presence_penalty * (counts > 0)
    return logits


def kept(logits: Tensor, params: SamplingParams) -> Tensor:
    """Which tokens of one row the filters leave: min_p, then top_k, then top_p of what is left."""
    shares = (logits.double() / params.temperature).softmax(0)
    is_kept = shares >= params.min_p * shares.max()
    if params.top_k:
        is_kept &= logits >= logits.topk(min(params.top_k, len(logits))).values[-1]
    if params.top_p < 1.0:
        left = shares * is_kept
        best_first, order = logits.sort(descending=True)
        before = left[order].cumsum(0) - left[order]
        is_needed = before < params.top_p * left.sum()
        is_kept &= logits >= best_first[is_needed].min()
    return is_kept
