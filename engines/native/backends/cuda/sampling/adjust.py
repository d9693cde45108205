"""A grammar's mask, put on the logits of one row."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from engines.native.backends.base import TokenMask

OUT: Final = -1e30  # finite, also over a small temperature: what is not a number is the model's


def exclude(logits: Tensor, mask: TokenMask) -> None:
    """Set the logits of one row to minus infinity where a grammar's mask forbids the token."""
    words = torch.from_numpy(mask.copy()).pin_memory() if logits.is_cuda else torch.tensor(mask)
    bits = torch.arange(32, dtype=torch.int32, device=logits.device)
    is_allowed = (words.to(logits.device, non_blocking=True)[:, None] >> bits) & 1
    logits.masked_fill_(is_allowed.flatten()[: len(logits)] == 0, OUT)
