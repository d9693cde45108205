"""The model in plain torch, in any precision: what the kernels are checked against."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engines.native.backends.cuda.steps.shape import Shape
from engines.native.backends.cuda.weights import fragment_order
from engines.native.backends.cuda.weights.model import LayerWeights, ModelWeights, PackedExperts
from tests.engines.native.cuda.kernels.kernel_references import (
    attention_reference,
    down_reference,
    gate_up_reference,
    linear_reference,
    norm_reference,
    rotate_reference,
    route_reference,
)

_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@dataclass(slots=True)
class Outcome:
    """Logits (tokens, vocabulary) of one sequence's new tokens.

    `closest` (tokens): how near the first expert that was not chosen came, at its nearest. The
    kernels' bf16 attention moves a router's logits by some thousandths: where the distance is
    smaller, either choice is right and the logits may not be compared.
    """

    logits: Tensor
    closest: Tensor


def forward_reference(
    shape: Shape,
    weights: ModelWeights,
    token_ids: Tensor,
    past: list[tuple[Tensor, Tensor]],
    dtype: torch.dtype = torch.float64,
) -> Outcome:
    """New tokens (tokens) of one sequence after `past`, keys and values (tokens, kv_heads, d) of
    each layer, keys rotated; the new tokens' own are appended to it in place."""
    config = shape.config
    x = weights.embedding[token_ids].to(dtype)
    closest = torch.full((len(token_ids),), float("inf"), dtype=dtype, device=x.device)
    for index, layer in enumerate(weights.layers):
        first = len(past[index][0])
        cos, sin = (
            table[first : first + len(token_ids)] for table in (weights.cosines, weights.sines)
        )
        h = norm_reference(x, layer.attention_norm, config.rms_norm_eps)
        qkv = linear_reference(h, layer.qkv, layer.qkv_bias).unflatten(-1, (-1, config.head_dim))
        sizes = [config.num_attention_heads, *[config.num_key_value_heads] * 2]
        q, k, v = qkv.split(sizes, dim=1)
        q, k = (rotate_reference(t, cos, sin) for t in (q, k))
        old_keys, old_values = past[index]
        keys = torch.cat((old_keys.to(dtype), k))
        values = torch.cat((old_values.to(dtype), v))
        past[index] = keys, values
        attended = attention_reference(q, keys, values, layer.sinks, shape.window(index))
        x = x + linear_reference(attended, layer.out, layer.out_bias)
        x, distance = _experts(shape, layer, x)
        closest = torch.minimum(closest, distance)
    normed = norm_reference(x, weights.norm, config.rms_norm_eps)
    return Outcome(linear_reference(normed, weights.head, None), closest)


def _experts(shape: Shape, layer: LayerWeights, x: Tensor) -> tuple[Tensor, Tensor]:
    config = shape.config
    h = norm_reference(x, layer.moe_norm, config.rms_norm_eps)
    ids, shares = route_reference(h, layer.router, layer.router_bias, shape.top_k)
    logits = linear_reference(h, layer.router, layer.router_bias).sort(-1, descending=True).values
    inner = gate_up_reference(
        h,
        _Unpacked(layer.gate_up, shape.hidden, is_gate_up=True),
        layer.gate_up.bias,
        ids,
        config.swiglu_alpha,
        config.swiglu_limit,
    )
    out = down_reference(inner, _Unpacked(layer.down, shape.inner), layer.down.bias, ids, shares)
    return x + out, logits[:, shape.top_k - 1] - logits[:, shape.top_k]


def plain_rows(words: Tensor, *, is_gate_up: bool = False) -> Tensor:
    """The rows that fragment_order.plain has ordered, as in the checkpoint, inputs padded."""
    columns = fragment_order.inputs_by_place(words.shape[2]).argsort()
    order = fragment_order.row_order(words.shape[1], is_gate_up, words.device)
    return words[:, order.argsort()][..., columns]


class _Unpacked:
    """Experts' matrices, each unpacked when it is asked for."""

    def __init__(self, packed: PackedExperts, inputs: int, is_gate_up: bool = False) -> None:
        self._packed, self._inputs, self._is_gate_up = packed, inputs, is_gate_up

    def __getitem__(self, expert: int) -> Tensor:
        if not self._packed.is_packed:
            values = plain_rows(self._packed.words[expert, None], is_gate_up=self._is_gate_up)
            return values[0, :, : self._inputs]
        codes, exponents = fragment_order.unpack(
            self._packed.words[expert, None],
            self._packed.scales[expert, None],
            is_gate_up=self._is_gate_up,
        )
        values = torch.tensor(_VALUES, dtype=torch.float64, device=codes.device)[codes.long() & 7]
        values = torch.where(codes > 7, -values, values)
        powers = (exponents.long() - 127 + 1023 << 52).view(torch.float64)
        powers = powers.repeat_interleave(32, -1)
        return (values * powers)[0, :, : self._inputs]
