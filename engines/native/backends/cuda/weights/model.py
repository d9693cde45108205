"""A model's weights in the layout of the kernels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class PackedExperts:
    """One product of a layer's experts, with bf16 bias (experts, rows).

    MXFP4 in fragment order; of a checkpoint that holds plain numbers, `words` are bf16 (experts,
    rows, padded inputs) in the same order and there are no scales: fragment_order.plain().
    """

    words: Tensor
    scales: Tensor
    bias: Tensor

    @property
    def is_packed(self) -> bool:
        """Whether the experts are MXFP4."""
        return self.words.dtype == torch.int32

    @property
    def halves(self) -> Tensor:
        """The words as the grouped kernels take them: MXFP4 as int16."""
        return self.words.view(torch.int16) if self.is_packed else self.words


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
    """A model, or some of its layers; cosines and sines (positions, head_dim / 2) float32, YaRN's
    factor in.

    Of layers that do not begin the model the embedding has no rows; of those that do not end it the
    output head has none, and no norm precedes it.
    """

    embedding: Tensor
    layers: list[LayerWeights]
    norm: Tensor
    head: Tensor
    cosines: Tensor
    sines: Tensor

    @property
    def begins(self) -> bool:
        """Whether this stage has the model's first layer."""
        return len(self.embedding) > 0

    @property
    def ends(self) -> bool:
        """Whether this stage has the model's last layer."""
        return len(self.head) > 0
