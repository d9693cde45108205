"""YaRN rotary position embedding.

The checkpoint rotates pairs (i, i + head_dim / 2). Loading interleaves the rows of the
query and key projections (`interleave_halves`), so that a pair lies side by side and one
complex product rotates it; attention scores do not change, as both sides are permuted alike.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from engines.native.config import RopeConfig


def interleave_halves(rows: Tensor, head_dim: int) -> Tensor:
    """Reorder dimension 0 of (heads * head_dim, ...): a b c d -> a c b d for head_dim 4."""
    halves: Tensor = rows.unflatten(0, (-1, 2, head_dim // 2))
    return halves.transpose(1, 2).flatten(0, 2)


class RotaryEmbedding:
    """Rotations by position; computed for each step, as a table would cost more than it saves."""

    def __init__(self, rope: RopeConfig, head_dim: int, device: torch.device) -> None:
        self._frequencies = inverse_frequencies(rope, head_dim).to(device)
        scale = rope.attention_factor
        if scale is None:
            scale = 0.1 * math.log(rope.factor) + 1.0 if rope.factor > 1 else 1.0
        self._scale = torch.tensor(scale, device=device)

    def __call__(self, positions: Tensor) -> Tensor:
        """positions (tokens) -> the complex rotation of each pair: (tokens, head_dim / 2)."""
        return torch.polar(self._scale, torch.outer(positions.float(), self._frequencies))


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


def rotate(x: Tensor, rotations: Tensor) -> None:
    """Rotate x (tokens, heads, head_dim) in place by rotations (tokens, head_dim / 2)."""
    rotations = rotations.unsqueeze(1)
    if x.dtype == torch.float32:
        torch.view_as_complex(x.unflatten(-1, (-1, 2))).mul_(rotations)
        return
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    x.copy_(torch.view_as_real(pairs * rotations).flatten(-2))


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
