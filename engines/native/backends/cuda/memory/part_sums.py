"""What the parts of a context's attention leave to the program that combines them."""

from __future__ import annotations

from typing import Final

import torch

from engines.native.config import ModelConfig

MOST_CUT: Final = 512  # parts in which all contexts together are cut; each row's last is one more
_HEADS: Final = 16  # query heads of a part, padded


def most_parts(num_rows: int) -> int:
    return MOST_CUT + num_rows


class PartSums:
    """The sums of all parts of a step, by K/V head."""

    def __init__(self, config: ModelConfig, num_rows: int, device: torch.device) -> None:
        heads = most_parts(num_rows) * config.num_key_value_heads
        self.out = torch.zeros((heads * _HEADS, config.head_dim), device=device)
        self.peak = torch.zeros(heads * _HEADS, device=device)
        self.total = torch.zeros(heads * _HEADS, device=device)
        self.arrivals = torch.zeros(heads, dtype=torch.int32, device=device)


def part_sum_bytes(config: ModelConfig, num_rows: int) -> int:
    heads = most_parts(num_rows) * config.num_key_value_heads
    return 4 * heads * (_HEADS * (config.head_dim + 2) + 1)
