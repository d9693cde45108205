"""What changes logits before the draw: masks, biases, penalties, and filters; torch on the device.

Only rows that ask for something pay. Nothing here waits for the device. The order is the CPU
sampler's: the mask of a grammar, logit_bias and penalties, then min_p, top_k and top_p.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engines.base import SamplingParams
from engines.native.backends.base import SlotStart, TokenMask

OUT = -1e30  # finite, also over a small temperature: what is not a number is the model's error


class SlotSampling:
    """The sampling parameters of one slot, with what of them lives on the device."""

    def __init__(self, start: SlotStart, vocab_size: int, device: torch.device) -> None:
        self.params: SamplingParams = start.sampling
        self.is_filtered = _is_filtered(start.sampling)
        self._bias = _bias(start.sampling, device)
        self._seen: Tensor | None = None  # (vocabulary) bool: in the prompt or the answer
        self._counts: Tensor | None = None  # (vocabulary): times in the answer
        if _is_penalised(start.sampling):
            ids = torch.tensor(start.token_ids, device=device)
            self._seen = torch.zeros(vocab_size, dtype=torch.bool, device=device)
            self._seen[ids] = True
            self._counts = torch.bincount(
                ids[start.num_prompt_tokens :], minlength=vocab_size
            ).float()

        self.is_biased = self._bias is not None or self._seen is not None

    def bias(self, logits: Tensor) -> None:
        """Apply logit_bias and penalties to one row, in place."""
        if self._bias is not None:
            logits.index_add_(0, *self._bias)
        if self._seen is None or self._counts is None:
            return
        p = self.params
        factor = torch.where(logits > 0, 1 / p.repetition_penalty, p.repetition_penalty)
        logits.copy_(torch.where(self._seen, logits * factor, logits))
        logits -= p.frequency_penalty * self._counts + p.presence_penalty * (self._counts > 0)

    def count(self, token_id: Tensor) -> None:
        """Count the token (1) that was sampled; one below 0 is none."""
        if self._seen is None or self._counts is None:
            return
        index = token_id.clamp(min=0).long()
        self._seen.index_fill_(0, index, True)
        self._counts.index_add_(0, index, torch.ones_like(index, dtype=torch.float32))


def exclude(logits: Tensor, mask: TokenMask) -> None:
    """Set the logits of one row to minus infinity where a grammar's mask forbids the token."""
    words = torch.from_numpy(mask.copy()).pin_memory() if logits.is_cuda else torch.tensor(mask)
    bits = torch.arange(32, dtype=torch.int32, device=logits.device)
    is_allowed = (words.to(logits.device, non_blocking=True)[:, None] >> bits) & 1
    logits.masked_fill_(is_allowed.flatten()[: len(logits)] == 0, OUT)


def floors(logits: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """The logit that a token needs to stay in the draw, of each row (rows); equal ones stay
    together.

    logits: (rows, vocabulary), masked and biased.
    """
    vocab_size = logits.shape[1]

    def column(values: list[float]) -> Tensor:
        return torch.tensor(values).to(logits.device, non_blocking=True).unsqueeze(1)

    temperature = column([max(p.temperature, 1e-6) for p in params])
    top_k = column([float(p.top_k or vocab_size) for p in params]).clamp(1, vocab_size)
    min_p = column([p.min_p for p in params])
    top_p = column([p.top_p for p in params])
    best_first = logits.sort(dim=1, descending=True).values
    floor = best_first.gather(1, top_k.long() - 1)
    floor = torch.maximum(floor, best_first[:, :1] + temperature * min_p.log())
    scaled = torch.where(best_first >= floor, best_first / temperature, float("-inf"))
    shares = scaled.softmax(1)
    is_needed = shares.cumsum(1) - shares < top_p
    last = (is_needed & (best_first >= floor)).sum(1, keepdim=True) - 1
    return torch.maximum(floor, best_first.gather(1, last.clamp(min=0))).squeeze(1)


def _is_filtered(params: SamplingParams) -> bool:
    return params.top_p < 1.0 or params.top_k > 0 or params.min_p > 0.0


def _is_penalised(params: SamplingParams) -> bool:
    return bool(
        params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1.0
    )


def _bias(params: SamplingParams, device: torch.device) -> tuple[Tensor, Tensor] | None:
    if not params.logit_bias:
        return None
    ids = torch.tensor([*params.logit_bias], device=device)
    values = torch.tensor([*params.logit_bias.values()], dtype=torch.float32, device=device)
    return ids, values
