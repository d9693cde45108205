"""The mixture of experts: a top-k router and clamped SwiGLU experts."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from engines.native.backends.cpu.layers import Linear, linear_bytes
from engines.native.config import ModelConfig

_CACHED_VALUES = 500_000  # of gates and ups: 2 MB, about the L2 caches of two cores
_MAX_COPIED = 4_194_304  # values of the experts' first matrices, small enough for a second copy


class Router:
    """Picks each token's experts and weighs them by a softmax over those picked."""

    def __init__(self, weight: Tensor, bias: Tensor, top_k: int) -> None:
        self._weight, self._bias, self._top_k = weight, bias, top_k

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x (tokens, hidden) -> weights and expert ids, both (tokens, top_k)."""
        logits, ids = F.linear(x, self._weight, self._bias).topk(self._top_k, dim=-1)
        return torch.softmax(logits, dim=-1), ids


class ExpertTensors(NamedTuple):
    """The experts of a layer as a checkpoint has them."""

    gate_up: Tensor  # (experts, hidden, 2 * inner), gates and ups taking turns
    gate_up_bias: Tensor  # (experts, 2 * inner)
    down: Tensor  # (experts, inner, hidden)
    down_bias: Tensor  # (experts, hidden)


class DenseExperts:
    """Runs every expert on every token and weighs the unpicked ones by zero.

    With few experts and tokens this beats sorting them, and no result is waited for: one matrix
    product before the activation and one after, which also sums over the experts.
    """

    def __init__(self, config: ModelConfig, tensors: ExpertTensors) -> None:
        self._num_experts, self._down_bias = config.num_local_experts, tensors.down_bias
        self._alpha, self._limit = config.swiglu_alpha, config.swiglu_limit
        weight = tensors.gate_up.unflatten(-1, (-1, 2)).permute(3, 0, 2, 1).flatten(0, 2)
        bias = tensors.gate_up_bias.unflatten(-1, (-1, 2)).permute(2, 0, 1).flatten()
        self._gate_up = Linear(weight, bias)
        self._down = Linear(tensors.down.flatten(0, 1).t(), None)

    def __call__(self, x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
        """x (tokens, hidden), weights and ids (tokens, top_k) -> (tokens, hidden)."""
        spread = x.new_zeros(len(x), self._num_experts).scatter_(1, ids, weights)
        gate, up = self._gate_up(x).chunk(2, dim=-1)
        inner = clamped_swiglu(gate, up, self._alpha, self._limit)
        inner = inner.unflatten(-1, (self._num_experts, -1)).mul_(spread.unsqueeze(-1))
        return self._down(inner.flatten(1)).addmm_(spread, self._down_bias)


class SparseExperts:
    """Sorts tokens by expert and runs each expert on its own tokens only."""

    def __init__(self, config: ModelConfig, tensors: ExpertTensors) -> None:
        self._alpha, self._limit = config.swiglu_alpha, config.swiglu_limit
        weight = tensors.gate_up.unflatten(-1, (-1, 2)).permute(0, 3, 2, 1).flatten(1, 2)
        bias = tensors.gate_up_bias.unflatten(-1, (-1, 2)).transpose(1, 2).flatten(1)
        self._experts = [
            (
                Linear(weight[e], bias[e]),
                Linear(tensors.down[e].t(), tensors.down_bias[e]),
            )
            for e in range(config.num_local_experts)
        ]

    def __call__(self, x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
        """x (tokens, hidden), weights and ids (tokens, top_k) -> (tokens, hidden)."""
        experts = ids.flatten()
        order = experts.argsort(stable=True)
        tokens = order // ids.shape[1]
        counts = torch.bincount(experts, minlength=len(self._experts)).tolist()
        parts = x.index_select(0, tokens).split(counts)
        out = torch.cat([self._run(e, part) for e, part in enumerate(parts) if len(part)])
        out *= weights.flatten().index_select(0, order).unsqueeze(-1)
        return torch.zeros_like(x).index_add_(0, tokens, out)

    def _run(self, expert: int, x: Tensor) -> Tensor:
        gate_up, down = self._experts[expert]
        gate, up = gate_up(x).chunk(2, dim=-1)
        return down(clamped_swiglu(gate, up, self._alpha, self._limit))


class FewExperts:
    """Dense while what it computes of the unpicked experts fits in a cache, else sparse."""

    def __init__(self, config: ModelConfig, tensors: ExpertTensors) -> None:
        self._dense, self._sparse = DenseExperts(config, tensors), SparseExperts(config, tensors)
        self._max_dense_rows = _CACHED_VALUES // tensors.gate_up_bias.numel()

    def __call__(self, x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
        """x (tokens, hidden), weights and ids (tokens, top_k) -> (tokens, hidden)."""
        run = self._dense if len(x) <= self._max_dense_rows else self._sparse
        return run(x, weights, ids)


Experts = DenseExperts | SparseExperts | FewExperts


def num_step_weights(config: ModelConfig) -> int:
    """The number of values in the largest matrix that a token is multiplied with."""
    num_together = config.num_local_experts if _are_few(config) else 1
    return num_together * _gate_up_size(config)


def experts_type(
    config: ModelConfig,
) -> type[DenseExperts] | type[SparseExperts] | type[FewExperts]:
    """Which implementation suits the shape: dense while it at most doubles the arithmetic."""
    if not _are_few(config):
        return SparseExperts
    is_small = config.num_local_experts * _gate_up_size(config) <= _MAX_COPIED
    return FewExperts if is_small else DenseExperts


def held_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """Bytes that a layer's experts keep of their matrices, all copies together."""
    num, inner, hidden = config.num_local_experts, config.intermediate_size, config.hidden_size
    dense, sparse = (
        linear_bytes(each * 2 * inner, hidden, dtype) + linear_bytes(hidden, each * inner, dtype)
        for each in (num, 1)
    )
    kept = experts_type(config)
    return (kept is not SparseExperts) * dense + (kept is not DenseExperts) * num * sparse


def _are_few(config: ModelConfig) -> bool:
    return config.num_local_experts <= 2 * config.num_experts_per_tok


def _gate_up_size(config: ModelConfig) -> int:
    return config.hidden_size * 2 * config.intermediate_size


def clamped_swiglu(gate: Tensor, up: Tensor, alpha: float, limit: float) -> Tensor:
    """gate * sigmoid(alpha * gate) * (up + 1), clamped at limit; overwrites gate and up."""
    gate, up = gate.clamp_(max=limit), up.clamp_(-limit, limit)
    glu = gate * torch.sigmoid_(gate * alpha)
    return torch.addcmul(glu, glu, up)
