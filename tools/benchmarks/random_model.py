"""Random weights of a model's true shape, made on the device."""

from __future__ import annotations

from dataclasses import fields, replace

import torch
from torch import Tensor

from engines.native.backends.cuda.steps.shape import Shape
from engines.native.backends.cuda.weights.fragment_order import RAISED
from engines.native.backends.cuda.weights.model import LayerWeights, ModelWeights, PackedExperts
from engines.native.config import ModelConfig
from engines.native.layer_split import part_of
from engines.native.rope import rotation_tables


def random_weights(
    config: ModelConfig, num_positions: int, device: torch.device, seed: int = 0
) -> ModelWeights:
    """Weights that keep activations bounded: bf16 normal ones and MXFP4 of random codes."""
    make = _Maker(config, device, seed)
    vocabulary = (config.vocab_size, config.hidden_size)
    cosines, sines = rotation_tables(config, num_positions, device)
    return ModelWeights(
        embedding=make.normal(*vocabulary, scale=1.0),
        layers=[make.layer() for _ in range(config.num_hidden_layers)],
        norm=make.normal(config.hidden_size, scale=0.1, mean=1.0),
        head=make.normal(*vocabulary, scale=0.02),
        cosines=cosines,
        sines=sines,
    )


def random_part(
    config: ModelConfig, layers: range, num_positions: int, device: torch.device
) -> ModelWeights:
    """Such weights of some layers alone; others than those of the whole model."""
    every = random_weights(part_of(config, layers), num_positions, device, seed=layers.start)
    nothing = every.norm.new_empty((0, config.hidden_size))
    if layers.start > 0:
        every = replace(every, embedding=nothing)
    if layers.stop < config.num_hidden_layers:
        every = replace(every, norm=nothing, head=nothing)
    return every


def part_of_weights(whole: ModelWeights, layers: range, device: torch.device) -> ModelWeights:
    """What a device has of a model's weights when it computes these layers."""

    def moved(layer: LayerWeights) -> LayerWeights:
        values = {each.name: getattr(layer, each.name) for each in fields(layer)}
        for name, value in values.items():
            values[name] = (
                PackedExperts(*(getattr(value, part.name).to(device) for part in fields(value)))
                if isinstance(value, PackedExperts)
                else value.to(device)
            )
        return LayerWeights(**values)

    nothing = torch.empty((0, whole.embedding.shape[1]), dtype=torch.bfloat16, device=device)
    begins, ends = layers.start == 0, layers.stop == len(whole.layers)
    return ModelWeights(
        embedding=whole.embedding.to(device) if begins else nothing,
        layers=[moved(whole.layers[i]) for i in layers],
        norm=whole.norm.to(device) if ends else nothing,
        head=whole.head.to(device) if ends else nothing,
        cosines=whole.cosines.to(device),
        sines=whole.sines.to(device),
    )


class _Maker:
    def __init__(self, config: ModelConfig, device: torch.device, seed: int) -> None:
        self._config, self._device = config, device
        self._shape = Shape(config)
        self._generator = torch.Generator(device).manual_seed(seed)

    def normal(self, *shape: int, scale: float, mean: float = 0.0) -> Tensor:
        values = torch.empty(shape, dtype=torch.bfloat16, device=self._device)
        return values.normal_(mean, scale, generator=self._generator)

    def layer(self) -> LayerWeights:
        c, shape = self._config, self._shape
        return LayerWeights(
            attention_norm=self.normal(c.hidden_size, scale=0.1, mean=1.0),
            qkv=self.normal(shape.qkv_size, c.hidden_size, scale=0.02),
            qkv_bias=self.normal(shape.qkv_size, scale=0.1),
            sinks=self.normal(c.num_attention_heads, scale=1.0),
            out=self.normal(c.hidden_size, c.q_size, scale=0.02),
            out_bias=self.normal(c.hidden_size, scale=0.1),
            moe_norm=self.normal(c.hidden_size, scale=0.1, mean=1.0),
            router=self.normal(c.num_local_experts, c.hidden_size, scale=c.hidden_size**-0.5),
            router_bias=self.normal(c.num_local_experts, scale=0.1),
            gate_up=self._experts(2 * c.intermediate_size, shape.hidden_stride),
            down=self._experts(c.hidden_size, shape.inner_stride),
        )

    def _experts(self, rows: int, inputs: int) -> PackedExperts:
        """Every word is a valid set of codes, so random words are random weights."""
        c = self._config
        words = torch.empty(
            (c.num_local_experts, rows // 16, 2 * inputs), dtype=torch.int32, device=self._device
        ).random_(-(2**31), 2**31 - 1, generator=self._generator)
        scales = torch.empty(
            (*words.shape[:2], 4 * (inputs // 6)), dtype=torch.uint8, device=self._device
        ).random_(117 + RAISED, 122 + RAISED, generator=self._generator)
        bias = self.normal(c.num_local_experts, rows, scale=0.1)
        return PackedExperts(words, scales.view(torch.int32), bias)
