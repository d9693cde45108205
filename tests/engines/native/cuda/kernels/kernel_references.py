"""What each kernel computes, in plain torch, in the precision of its input."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


def route_reference(x: Tensor, weight: Tensor, bias: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """x (rows, hidden), weight (experts, hidden) -> experts, ascending, and weights, both
    (rows, top_k)."""
    logits, ids = (x @ weight.to(x.dtype).T + bias.to(x.dtype)).topk(top_k, -1)
    ids, order = ids.sort(-1)
    return ids, torch.softmax(logits, -1).gather(-1, order)


def lists_reference(experts: Tensor, num_experts: int) -> list[list[int]]:
    """The pairs of each expert, from experts (rows, top_k)."""
    flat = experts.flatten()
    return [(flat == e).nonzero().flatten().tolist() for e in range(num_experts)]


def rotate_reference(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x (rows, heads, head_dim), cos and sin (rows, head_dim / 2)."""
    low, high = x.chunk(2, -1)
    cos, sin = cos.to(x.dtype).unsqueeze(1), sin.to(x.dtype).unsqueeze(1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)


def attention_reference(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, window: int) -> Tensor:
    """The last tokens of one sequence: q (queries, heads, d) rotated, k and v (keys, kv_heads, d),
    sinks (heads) -> (queries, heads * d). Query i sees keys up to keys - queries + i; of a window
    above 0 only the last ones."""
    num_queries, num_heads, d = q.shape
    k, v = (t.to(q.dtype).repeat_interleave(num_heads // t.shape[1], 1) for t in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * d**-0.5
    behind = torch.arange(num_queries, device=q.device)[:, None] + len(k) - num_queries
    behind = behind - torch.arange(len(k), device=q.device)
    is_hidden = behind < 0
    if window:
        is_hidden |= behind >= window
    scores = scores.masked_fill(is_hidden, float("-inf"))
    sink = sinks.to(q.dtype).view(-1, 1, 1).expand(-1, num_queries, 1)
    weights = torch.cat((scores, sink), -1).softmax(-1)[..., :-1]
    return torch.einsum("hqk,khd->qhd", weights, v).flatten(1)


class Matrices(Protocol):
    """The experts' matrices, by expert: a tensor (experts, out, in) is such."""

    def __getitem__(self, expert: int, /) -> Tensor: ...


def gate_up_reference(
    x: Tensor, weight: Matrices, bias: Tensor, experts: Tensor, alpha: float, limit: float
) -> Tensor:
    """x (tokens, hidden), weight (experts, 2 * inner, hidden), bias (experts, 2 * inner), experts
    (tokens, top_k) -> (tokens * top_k, inner); gates and ups take turns."""
    _tokens, ranks = experts.shape
    rows = x.repeat_interleave(ranks, 0)
    gate, up = _apply(rows, weight, bias, experts.flatten()).unflatten(-1, (-1, 2)).unbind(-1)
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    out: Tensor = gate * torch.sigmoid(alpha * gate) * (up + 1)
    return out


def down_reference(
    h: Tensor, weight: Matrices, bias: Tensor, experts: Tensor, weights: Tensor
) -> Tensor:
    """h (tokens * top_k, inner), weight (experts, hidden, inner), experts and weights (tokens,
    top_k) -> the weighted sum (tokens, hidden)."""
    out = _apply(h, weight, bias, experts.flatten()).unflatten(0, experts.shape)
    total: Tensor = (out * weights.unsqueeze(-1)).sum(1)
    return total


def _apply(rows: Tensor, weight: Matrices, bias: Tensor, experts: Tensor) -> Tensor:
    """Apply the experts; each expert's matrix is requested once, because it may have to be made."""
    out = rows.new_empty(len(rows), bias.shape[1])
    for expert in experts.unique().tolist():
        mine = experts == expert
        out[mine] = rows[mine] @ weight[expert].to(rows.dtype).T + bias[expert].to(rows.dtype)
    return out


def norm_reference(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """x (rows, hidden) -> the same: x / sqrt(mean(x²) + eps) * gain."""
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * gain.to(x.dtype)


def linear_reference(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x (rows, in), weight (out, in), bias (out) -> (rows, out), in x's dtype."""
    y = x @ weight.to(x.dtype).T
    return y if bias is None else y + bias.to(x.dtype)
