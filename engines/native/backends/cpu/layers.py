"""The layers besides attention: linear, normalisation, rotary positions, experts, the head.

The checkpoint rotates pairs (i, i + head_dim / 2) (engines/native/rope.py). Loading interleaves the
rows of the query and key projections (`interleave_halves`), so that a pair lies side by side and
one complex product rotates it; attention scores do not change, as both sides are permuted alike.

Weights are in the layout and the type that this CPU multiplies fastest. Many CPUs have no
arithmetic for bfloat16; torch's products of it are then eight times slower than those of float32.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from engines.native.backends.cpu.exchange import RankExchange
from engines.native.config import ModelConfig, RopeConfig
from engines.native.host.slots import Columns, Logits
from engines.native.rope import attention_factor, inverse_frequencies
from engines.native.tensor_parallel.shard import shares

_TUNED_ROWS = 32  # the batch the layout suits best; any other is computed as well
# With few rows the longer call costs more than the layout saves: as few as these, by the number of
# values of the weight, which is then kept plainly too. A second copy of a larger one costs much.
_PLAIN_ROWS = ((262_144, 7), (4_194_304, 1))

_MIN_SHARED = 0.25  # of the vocabulary, for the compact head to pay
_CACHED_VALUES = 500_000  # of gates and ups: 2 MB, about the L2 caches of two cores
_MAX_COPIED = 4_194_304  # values of the experts' first matrices, small enough for a second copy


def has_bfloat16() -> bool:
    """Whether oneDNN multiplies bfloat16 on this CPU: it needs AVX-512 or AVX_NE_CONVERT."""
    mkldnn = torch.backends.mkldnn.is_available()
    return mkldnn and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def linear_bytes(num_out: int, num_in: int, dtype: torch.dtype) -> int:
    """Bytes that `Linear` keeps of a weight (num_out, num_in) of `dtype`, all copies together."""
    size = num_out * num_in
    num_copies = 1 + (can_pack(dtype) and _plain_rows(size) > 0)
    return num_copies * size * dtype.itemsize


class Linear:
    """y = x @ weight.T + bias, with weight (out, in) and bias (out), all of one type."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._bias = bias
        self._packed = _pack(weight) if can_pack(weight.dtype) else None
        self._plain_rows = _plain_rows(weight.numel())
        is_plain = self._packed is None or self._plain_rows > 0
        self._plain = _for_one_row(weight) if is_plain else None

    def __call__(self, x: Tensor) -> Tensor:
        """x (rows, in) -> (rows, out)."""
        if self._plain is not None and (self._packed is None or len(x) <= self._plain_rows):
            return F.linear(x, self._plain, self._bias)
        missing = _rounded(len(x)) - len(x)
        padded = F.pad(x, (0, 0, 0, missing)) if missing else x
        return _times_packed(padded, self._packed, self._bias)[: len(x)]


def can_pack(dtype: torch.dtype) -> bool:
    """Whether oneDNN can hold a weight in its own layout (the one torch.compile uses)."""
    if not torch.backends.mkldnn.is_available():
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and has_bfloat16())


def _rounded(rows: int) -> int:
    """A number of rows not below, of few: for each, oneDNN makes a kernel and keeps 0.5 MB."""
    step = 1 if rows <= _TUNED_ROWS else 1 << rows.bit_length() - 4
    return -(-rows // step) * step


def _plain_rows(size: int) -> int:
    """Largest batch for which a weight of this size stays unpacked."""
    return next((rows for limit, rows in _PLAIN_ROWS if size < limit), 0)


def _for_one_row(weight: Tensor) -> Tensor:
    """The same values, lying in memory as a product with one row reads them fastest.

    Where it widens, columns that are added up; else rows that are summed, each by itself.
    """
    is_wider = weight.dtype == torch.float32 and len(weight) > weight.shape[1]
    return weight.t().contiguous().t() if is_wider else weight.contiguous()


def _pack(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight.default(
        weight.contiguous(), _TUNED_ROWS
    )
    return packed


def _times_packed(x: Tensor, packed: Tensor | None, bias: Tensor | None) -> Tensor:
    y: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, packed, bias, "none", [], "")
    return y


class RmsNorm:
    """x / sqrt(mean(x²) + eps) * weight over the last dimension."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        self._weight, self._eps = weight, eps

    def __call__(self, x: Tensor) -> Tensor:
        """x (..., width) -> the same shape."""
        return F.rms_norm(x, self._weight.shape, self._weight, self._eps)


class RotaryEmbedding:
    """Rotations by position; computed for each step, as a table would cost more than it saves."""

    def __init__(self, rope: RopeConfig, head_dim: int, device: torch.device) -> None:
        self._frequencies = inverse_frequencies(rope, head_dim).to(device)
        self._scale = torch.tensor(attention_factor(rope), device=device)

    def __call__(self, positions: Tensor) -> Tensor:
        """positions (tokens) -> the complex rotation of each pair: (tokens, head_dim / 2)."""
        return torch.polar(self._scale, torch.outer(positions.float(), self._frequencies))


def interleave_halves(rows: Tensor, head_dim: int) -> Tensor:
    """Reorder dimension 0 of (heads * head_dim, ...): a b c d -> a c b d for head_dim 4."""
    halves: Tensor = rows.unflatten(0, (-1, 2, head_dim // 2))
    return halves.transpose(1, 2).flatten(0, 2)


def rotate(x: Tensor, rotations: Tensor) -> None:
    """Rotate x (tokens, heads, head_dim) in place by rotations (tokens, head_dim / 2)."""
    rotations = rotations.unsqueeze(1)
    if x.dtype == torch.float32:
        torch.view_as_complex(x.unflatten(-1, (-1, 2))).mul_(rotations)
        return
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    x.copy_(torch.view_as_real(pairs * rotations).flatten(-2))


class OutputHead:
    """logits = hidden @ weight.T, exactly, without repeating equal rows.

    The rows of tokens that training never met may all be alike (nano's are). Of the rows equal
    to the last one only the first is computed. What is left is shared out over the ranks.
    """

    def __init__(self, weight: Tensor, dtype: torch.dtype, exchange: RankExchange) -> None:
        """`weight` (vocabulary, hidden), in any float dtype."""
        self._exchange = exchange
        is_shared = (weight == weight[-1]).all(dim=-1)
        self._columns: Columns | None = None
        if is_shared.sum() >= _MIN_SHARED * len(weight):
            self._columns = _columns(is_shared)
            weight = weight[self._columns.token_ids]
        own = shares(len(weight), exchange.size)[exchange.rank]
        weight = weight[own.start : own.stop].to(dtype)
        self._linear = Linear(weight, None)
        self.num_weights = weight.numel()

    def __call__(self, hidden: Tensor) -> Logits:
        """hidden (rows, hidden_size) -> logits; on other ranks than the first what they have."""
        own = self._linear(hidden).float()
        return Logits(self._exchange.join(own), self._columns)


def _columns(is_shared: Tensor) -> Columns:
    first = int(is_shared.nonzero()[0])
    is_kept = ~is_shared
    is_kept[first] = True
    shared = int(is_kept[:first].sum())
    return Columns(is_kept.nonzero().squeeze(-1), shared, len(is_shared))


class Router:
    """Picks each token's experts and weighs them by a softmax over those picked."""

    def __init__(self, weight: Tensor, bias: Tensor, top_k: int) -> None:
        self._weight, self._bias, self._top_k = weight, bias, top_k

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x (tokens, hidden) -> weights and expert ids, both (tokens, top_k)."""
        logits, ids = F.linear(x, self._weight, self._bias).topk(self._top_k, dim=-1)
        return torch.softmax(logits, dim=-1), ids


class ExpertTensors(NamedTuple):
    """The experts of a layer as a checkpoint has them, or some of them."""

    first: int  # of these among all that a router chooses from
    num_routed: int
    gate_up: Tensor  # (experts, hidden, 2 * inner), gates and ups taking turns
    gate_up_bias: Tensor  # (experts, 2 * inner)
    down: Tensor  # (experts, inner, hidden)
    down_bias: Tensor  # (experts, hidden)


class ExpertPair(NamedTuple):
    """What an adapter adds to a product of each expert: x @ down @ up."""

    down: Tensor  # (experts, in, rank)
    up: Tensor  # (experts, rank, out)

    def add(self, expert: int, x: Tensor, y: Tensor) -> None:
        y.addmm_(x @ self.down[expert], self.up[expert])


class ExpertChange(NamedTuple):
    """What an adapter changes of a layer's experts."""

    gate_up: ExpertPair | None  # its outputs are the gates, then the ups
    down: ExpertPair | None


class DenseExperts:
    """Runs every expert on every token and weighs the unpicked ones by zero.

    With few experts and tokens this beats sorting them, and no result is waited for: one matrix
    product before the activation and one after, which also sums over the experts.
    """

    def __init__(self, config: ModelConfig, tensors: ExpertTensors) -> None:
        self._num_experts, self._down_bias = config.num_local_experts, tensors.down_bias
        self._first, self._num_routed = tensors.first, tensors.num_routed
        self._alpha, self._limit = config.swiglu_alpha, config.swiglu_limit
        weight = tensors.gate_up.unflatten(-1, (-1, 2)).permute(3, 0, 2, 1).flatten(0, 2)
        bias = tensors.gate_up_bias.unflatten(-1, (-1, 2)).permute(2, 0, 1).flatten()
        self._gate_up = Linear(weight, bias)
        self._down = Linear(tensors.down.flatten(0, 1).t(), None)

    def __call__(self, x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
        """x (tokens, hidden), weights and ids (tokens, top_k) -> (tokens, hidden)."""
        spread = x.new_zeros(len(x), self._num_routed).scatter_(1, ids, weights)
        spread = spread[:, self._first : self._first + self._num_experts]
        gate, up = self._gate_up(x).chunk(2, dim=-1)
        inner = clamped_swiglu(gate, up, self._alpha, self._limit)
        inner = inner.unflatten(-1, (self._num_experts, -1)).mul_(spread.unsqueeze(-1))
        return self._down(inner.flatten(1)).addmm_(spread, self._down_bias)


class SparseExperts:
    """Sorts tokens by expert and runs each expert on its own tokens only."""

    def __init__(self, config: ModelConfig, tensors: ExpertTensors) -> None:
        self._alpha, self._limit = config.swiglu_alpha, config.swiglu_limit
        self._first, self._num_routed = tensors.first, tensors.num_routed
        weight = tensors.gate_up.unflatten(-1, (-1, 2)).permute(0, 3, 2, 1).flatten(1, 2)
        bias = tensors.gate_up_bias.unflatten(-1, (-1, 2)).transpose(1, 2).flatten(1)
        self._experts = [
            (
                Linear(weight[e], bias[e]),
                Linear(tensors.down[e].t(), tensors.down_bias[e]),
            )
            for e in range(config.num_local_experts)
        ]

    def __call__(
        self, x: Tensor, weights: Tensor, ids: Tensor, change: ExpertChange | None = None
    ) -> Tensor:
        """x (tokens, hidden), weights and ids (tokens, top_k) -> (tokens, hidden)."""
        experts = ids.flatten()
        every = torch.bincount(experts, minlength=self._num_routed).tolist()
        num_before, last = sum(every[: self._first]), self._first + len(self._experts)
        counts = every[self._first : last]
        order = experts.argsort(stable=True)[num_before : num_before + sum(counts)]
        if not len(order):
            return torch.zeros_like(x)
        tokens = order // ids.shape[1]
        parts = x.index_select(0, tokens).split(counts)
        out = torch.cat([self._run(e, part, change) for e, part in enumerate(parts) if len(part)])
        out *= weights.flatten().index_select(0, order).unsqueeze(-1)
        return torch.zeros_like(x).index_add_(0, tokens, out)

    def _run(self, expert: int, x: Tensor, change: ExpertChange | None) -> Tensor:
        (gate_up, down), (of_gate_up, of_down) = self._experts[expert], change or (None, None)
        both = gate_up(x)
        if of_gate_up is not None:
            of_gate_up.add(expert, x, both)
        gate, up = both.chunk(2, dim=-1)
        inner = clamped_swiglu(gate, up, self._alpha, self._limit)
        out = down(inner)
        if of_down is not None:
            of_down.add(expert, inner, out)
        return out


class FewExperts:
    """Dense while what it computes of the unpicked experts fits in a cache, else sparse."""

    def __init__(self, config: ModelConfig, tensors: ExpertTensors) -> None:
        self._dense, self._sparse = DenseExperts(config, tensors), SparseExperts(config, tensors)
        self._max_dense_rows = _CACHED_VALUES // tensors.gate_up_bias.numel()

    def __call__(
        self, x: Tensor, weights: Tensor, ids: Tensor, change: ExpertChange | None = None
    ) -> Tensor:
        """x (tokens, hidden), weights and ids (tokens, top_k) -> (tokens, hidden)."""
        if change is None and len(x) <= self._max_dense_rows:
            return self._dense(x, weights, ids)
        return self._sparse(x, weights, ids, change)


Experts = SparseExperts | FewExperts


def num_step_weights(config: ModelConfig) -> int:
    """The number of values in the largest matrix that a token is multiplied with."""
    num_together = config.num_local_experts if experts_type(config) is FewExperts else 1
    return num_together * _gate_up_size(config)


def experts_type(config: ModelConfig) -> type[SparseExperts] | type[FewExperts]:
    """Which implementation suits the shape: dense while it at most doubles the arithmetic."""
    are_few = config.num_local_experts <= 2 * config.num_experts_per_tok
    is_small = config.num_local_experts * _gate_up_size(config) <= _MAX_COPIED
    return FewExperts if are_few and is_small else SparseExperts


def expert_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """Bytes that a layer's experts keep of their matrices, all copies together."""
    num, inner, hidden = config.num_local_experts, config.intermediate_size, config.hidden_size
    dense, sparse = (
        linear_bytes(each * 2 * inner, hidden, dtype) + linear_bytes(hidden, each * inner, dtype)
        for each in (num, 1)
    )
    return (experts_type(config) is FewExperts) * dense + num * sparse


def _gate_up_size(config: ModelConfig) -> int:
    return config.hidden_size * 2 * config.intermediate_size


def clamped_swiglu(gate: Tensor, up: Tensor, alpha: float, limit: float) -> Tensor:
    """gate * sigmoid(alpha * gate) * (up + 1), clamped at limit; overwrites gate and up."""
    gate, up = gate.clamp_(max=limit), up.clamp_(-limit, limit)
    glu = gate * torch.sigmoid_(gate * alpha)
    return torch.addcmul(glu, glu, up)
