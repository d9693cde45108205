"""Grammars' masks, put on the logits of rows."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Final

import numpy as np
import torch
from torch import Tensor

from engines.native.backends.base import TokenMask
from engines.native.backends.cuda.memory.transfer import Transfer

OUT: Final = -1e30  # finite, also over a small temperature: what is not a number is the model's


_AT_ONCE: Final = 8  # rows: each takes some twelve bytes for each token meanwhile


def exclude(logits: Tensor, masks: Mapping[int, TokenMask], transfer: Transfer) -> None:
    """Set the logits of these rows to minus infinity where a grammar's mask forbids the token: one
    copy, and a few launches for many rows."""
    for first in range(0, len(masks), _AT_ONCE):
        part = dict(islice(masks.items(), first, first + _AT_ONCE))
        words = transfer.to_device(torch.from_numpy(np.stack([*part.values()])))
        rows = transfer.upload([*part], torch.int64)
        bits = torch.arange(32, dtype=torch.int32, device=logits.device)
        is_out = ((words[:, :, None] >> bits) & 1).flatten(1)[:, : logits.shape[1]] == 0
        logits[rows] = logits[rows].masked_fill_(is_out, OUT)
