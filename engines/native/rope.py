"""The numbers of YaRN's rotary embedding, which gpt-oss has; pairs are (i, i + head_dim / 2)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from engines.native.config import ModelConfig, RopeConfig


def attention_factor(rope: RopeConfig) -> float:
    """YaRN's factor for queries and keys."""
    if rope.attention_factor is not None:
        return rope.attention_factor
    return 0.1 * math.log(rope.factor) + 1.0 if rope.factor > 1 else 1.0


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """Radians per position of each pair: (head_dim / 2).

    Pairs that turn often within the original context keep their frequency, pairs that turn
    less than once are slowed by `factor`, and a linear ramp joins the two.
    """
    num_pairs = head_dim // 2
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    periods = rope.theta**exponents
    low, high = _ramp_bounds(rope, head_dim)
    ramp = (torch.arange(num_pairs, dtype=torch.float32) - low) / (high - low)
    slowed = ramp.clamp(0, 1)
    return slowed / (rope.factor * periods) + (1 - slowed) / periods


def rotation_tables(
    config: ModelConfig, num_positions: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """cos and sin of each position and pair, times YaRN's attention factor."""
    frequencies = inverse_frequencies(config.rope, config.head_dim)
    angles = torch.outer(torch.arange(num_positions).float(), frequencies)
    rotations = torch.polar(torch.tensor(attention_factor(config.rope)), angles)
    return (
        rotations.real.float().contiguous().to(device),
        rotations.imag.float().contiguous().to(device),
    )


def _ramp_bounds(rope: RopeConfig, head_dim: int) -> tuple[float, float]:
    """The pairs between which the ramp runs, as transformers computes them."""
    low, high = (_pair_turning(rope, head_dim, n) for n in (rope.beta_fast, rope.beta_slow))
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    return low, high + 0.001 if low == high else high


def _pair_turning(rope: RopeConfig, head_dim: int, num_turns: float) -> float:
    """The (fractional) pair that turns num_turns times within the original context."""
    wavelength = rope.original_max_position_embeddings / (num_turns * 2 * math.pi)
    return head_dim * math.log(wavelength) / (2 * math.log(rope.theta))
