"""gpt-oss's layers in plain torch, small and batched, for training nano."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a model; the names are config.json's."""

    hidden_size: int = 160
    num_hidden_layers: int = 8
    num_attention_heads: int = 8
    num_key_value_heads: int = 4
    head_dim: int = 64
    intermediate_size: int = 64
    num_local_experts: int = 8
    num_experts_per_tok: int = 4
    sliding_window: int = 128
    rope_theta: float = 150_000.0
    rope_factor: float = 2.0
    original_positions: int = 4096
    swiglu_limit: float = 7.0
    vocab_size: int = 201_088


def yarn_frequencies(shape: Shape) -> tuple[Tensor, float]:
    """Return the inverse frequencies [head_dim / 2] and the scale of cos and sin.

    YaRN (Peng et al., 2023) without truncation, as gpt-oss uses it.
    """
    half = shape.head_dim // 2
    plain = shape.rope_theta ** (-torch.arange(half, dtype=torch.float32) / half)

    def dimension(num_rotations: float) -> float:
        ratio = shape.original_positions / (num_rotations * 2 * math.pi)
        return half * math.log(ratio) / math.log(shape.rope_theta)

    low, high = max(dimension(32.0), 0.0), min(dimension(1.0), shape.head_dim - 1.0)
    ramp = ((torch.arange(half) - low) / (high - low)).clamp(0, 1)
    frequencies = plain / shape.rope_factor * ramp + plain * (1 - ramp)
    return frequencies, 0.1 * math.log(shape.rope_factor) + 1.0


class Attention(nn.Module):
    """Grouped-query attention with a learned sink per head."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        queries = shape.num_attention_heads * shape.head_dim
        keys = shape.num_key_value_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.hidden_size, queries)
        self.k_proj = nn.Linear(shape.hidden_size, keys)
        self.v_proj = nn.Linear(shape.hidden_size, keys)
        self.o_proj = nn.Linear(queries, shape.hidden_size)
        self.sinks = nn.Parameter(torch.zeros(shape.num_attention_heads))

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        """Attend: x [batch, tokens, hidden], mask [tokens, 1 + tokens] 0 where visible."""
        batch, tokens, _ = x.shape
        split = (batch, tokens, -1, self.shape.head_dim)
        q = rotate(self.q_proj(x).view(split).transpose(1, 2), rope)
        k = rotate(self.k_proj(x).view(split).transpose(1, 2), rope)
        v = self.v_proj(x).view(split).transpose(1, 2)
        groups = self.shape.num_attention_heads // self.shape.num_key_value_heads
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        with torch.autocast(x.device.type, enabled=False):
            mixed = self._attend(q.to(v.dtype), k.to(v.dtype), v, mask.to(v.dtype))
        output: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(batch, tokens, -1))
        return output

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """Attend with the sink as a first key that has no value.

        One more dimension, 1 in every query, carries the sink's logit in that key. Two
        batched products and one softmax are faster on a CPU than the fused attention.
        """
        batch, heads, tokens, width = q.shape
        scale = width**-0.5
        sink = F.pad((self.sinks / scale).to(k.dtype).view(1, heads, 1, 1), (width, 0))
        k = torch.cat([sink.expand(batch, -1, -1, -1), F.pad(k, (0, 1))], 2)
        q = torch.cat([q, q.new_ones(1).expand(batch, heads, tokens, 1)], -1)
        keys = k.flatten(0, 1).transpose(1, 2)
        scores = torch.baddbmm(mask, q.flatten(0, 1), keys, alpha=scale)
        mixed = scores.softmax(-1)[..., 1:] @ v.flatten(0, 1)
        return mixed.view(batch, heads, tokens, width)


def rotate(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate the two halves of each head's dimensions by the token's position."""
    cos, sin = rope
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


class Experts(nn.Module):
    """Top-k experts with clamped SwiGLU, all computed: at this size that is fastest."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        experts, hidden, width = (
            shape.num_local_experts,
            shape.hidden_size,
            shape.intermediate_size,
        )
        self.router = nn.Linear(hidden, experts)
        self.gate = nn.Linear(hidden, experts * width)
        self.up = nn.Linear(hidden, experts * width)
        self.down = nn.Linear(experts * width, hidden, bias=False)
        self.down_bias = nn.Parameter(torch.zeros(experts, hidden))

    def forward(self, x: Tensor) -> Tensor:
        """Mix the chosen experts: x [tokens, hidden]."""
        chosen, index = self.router(x).float().topk(self.shape.num_experts_per_tok, -1)
        weights = torch.zeros(len(x), self.shape.num_local_experts, device=x.device)
        weights = weights.scatter(1, index, chosen.softmax(-1)).to(x.dtype)
        limit = self.shape.swiglu_limit
        gate, up = self.gate(x).clamp(max=limit), self.up(x).clamp(-limit, limit)
        active = (up + 1) * gate * torch.sigmoid(1.702 * gate)
        active = active.view(len(x), self.shape.num_local_experts, -1) * weights[..., None]
        output: Tensor = self.down(active.flatten(1)) + weights @ self.down_bias
        return output


class Layer(nn.Module):
    """One layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.hidden_size, eps=1e-5)
        self.attention = Attention(shape)
        self.experts_norm = nn.RMSNorm(shape.hidden_size, eps=1e-5)
        self.experts = Experts(shape)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        """Add attention and experts to the residual stream."""
        x = x + self.attention(self.attention_norm(x), rope, mask)
        mixed: Tensor = self.experts(self.experts_norm(x).flatten(0, 1))
        return x + mixed.view(x.shape)
