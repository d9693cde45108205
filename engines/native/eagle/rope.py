"""The rotary embedding that a head's config.json names."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from engines.native.config import RopeConfig
from engines.native.eagle.config import Llama3Rope
from engines.native.rope import attention_factor, inverse_frequencies


def rotation_tables(
    rope: Llama3Rope | RopeConfig, head_dim: int, num_positions: int
) -> tuple[Tensor, Tensor]:
    """Cosines and sines (positions, head_dim / 2) float32, YaRN's factor in."""
    if isinstance(rope, RopeConfig):
        frequencies, scale = inverse_frequencies(rope, head_dim), attention_factor(rope)
    else:
        frequencies, scale = _llama3_frequencies(rope, head_dim), 1.0
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), frequencies)
    return angles.cos() * scale, angles.sin() * scale


def rotated(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotate the pairs (i, i + head_dim / 2) of x (rows, heads, head_dim).

    cosines and sines: (rows, head_dim / 2).
    """
    low, high = x.float().chunk(2, -1)
    cosines, sines = cosines.unsqueeze(1), sines.unsqueeze(1)
    halves = (low * cosines - high * sines, high * cosines + low * sines)
    return torch.cat(halves, -1).to(x.dtype)


def _llama3_frequencies(rope: Llama3Rope, head_dim: int) -> Tensor:
    """Radians per position of each pair: slow pairs slowed by `factor`, fast ones as they are.

    As transformers' `_compute_llama3_parameters`.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequencies = 1 / rope.theta**exponents
    if rope.factor == 1.0:
        return frequencies
    turns = rope.original_max_position_embeddings * frequencies / (2 * math.pi)
    low, high = rope.low_freq_factor, rope.high_freq_factor
    share = ((turns - low) / (high - low)).clamp(0, 1)  # of the frequency as it is
    return (1 - share) * frequencies / rope.factor + share * frequencies
