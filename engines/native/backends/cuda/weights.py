"""A model's weights in the layout of the kernels."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class PackedExperts:
    """One product of a layer's experts: MXFP4 in fragment order, bf16 bias (experts, rows)."""

    words: Tensor
    scales: Tensor
    bias: Tensor


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer; all bf16 but the experts. Query heads first in qkv, then keys, then values."""

    attention_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor
    sinks: Tensor
    out: Tensor
    out_bias: Tensor
    moe_norm: Tensor
    router: Tensor
    router_bias: Tensor
    gate_up: PackedExperts
    down: PackedExperts


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """The whole model; cosines and sines (positions, head_dim / 2) float32, YaRN's factor in."""

    embedding: Tensor
    layers: list[LayerWeights]
    norm: Tensor
    head: Tensor
    cosines: Tensor
    sines: Tensor
