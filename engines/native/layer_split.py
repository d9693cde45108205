"""A model's layers shared out over several GPUs: which layers each has, and its part's shape."""

from __future__ import annotations

from dataclasses import replace

from engines.native.config import ModelConfig


def split_layers(num_layers: int, num_parts: int) -> list[range]:
    """Neighbouring layers of each part; where they do not divide evenly, the middle parts have one
    more, because the first has the embedding and the last the output head."""
    each, left = divmod(num_layers, num_parts)
    first = (num_parts - left + 1) // 2
    sizes = [each + (first <= part < first + left) for part in range(num_parts)]
    starts = [sum(sizes[:part]) for part in range(num_parts)]
    return [range(start, start + size) for start, size in zip(starts, sizes, strict=True)]


def part_of(model: ModelConfig, layers: range) -> ModelConfig:
    """The shape of a model that has only these layers."""
    kinds = model.layer_types[layers.start : layers.stop]
    return replace(model, num_hidden_layers=len(layers), layer_types=kinds)
