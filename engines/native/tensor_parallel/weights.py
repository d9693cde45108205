"""A rank's part of a checkpoint's tensors; of what others have nothing is read."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from engines.native.config import ModelConfig, NativeConfig
from engines.native.mxfp4 import BLOCK_SIZE
from engines.native.tensor_parallel.shard import Shard, part_of
from engines.native.weights import CheckpointTensors, tensor_specs

# Biases of products whose results the ranks add up: the first rank alone has them. Those of experts
# that are split by expert belong to their expert.
_ADDED_UP: Final = ("self_attn.o_proj.bias", "mlp.experts.down_proj_bias")


class PartTensors(CheckpointTensors):
    """The tensors as one rank holds them; the embedding, the head, norms and routers are whole."""

    def __init__(self, config: NativeConfig, model: ModelConfig, shard: Shard) -> None:
        super().__init__(config.model_dir, tensor_specs(model), config.quantize)
        self.model, self.shard = model, shard
        self._parts = tensor_specs(part_of(model, shard))

    def shape(self, name: str) -> tuple[int, ...]:
        return self._parts[name].shape

    def _read(self, name: str) -> Tensor:
        whole = super()._read(name)
        if self.shard.size == 1:
            return whole
        part = whole[cut(name, self.model, self.shard)]
        is_by_expert = len(self.shard.experts) < self.model.num_local_experts
        if not self.shard.is_first and name.endswith(_ADDED_UP[: 1 if is_by_expert else 2]):
            return torch.zeros_like(part)
        return part


def cut(name: str, model: ModelConfig, shard: Shard) -> tuple[slice, ...]:
    """The places of a stored tensor that a rank has: one slice for each of its first dimensions."""
    _, _, within = name.partition("model.layers.")
    kind = within.partition(".")[2]
    group = model.num_attention_heads // model.num_key_value_heads
    queries = _scaled(shard.kv_heads, group)
    experts, inner = _scaled(shard.experts), _scaled(shard.inner)
    gates_and_ups = _scaled(shard.inner, 2)  # they take turns
    match kind.removeprefix("self_attn.").removeprefix("mlp.experts."):
        case "sinks":
            return (queries,)
        case "q_proj.weight" | "q_proj.bias":
            return (_scaled(shard.kv_heads, group * model.head_dim),)
        case "k_proj.weight" | "k_proj.bias" | "v_proj.weight" | "v_proj.bias":
            return (_scaled(shard.kv_heads, model.head_dim),)
        case "o_proj.weight":
            return (slice(None), _scaled(shard.kv_heads, group * model.head_dim))
        case "gate_up_proj":
            return (experts, slice(None), gates_and_ups)
        case "gate_up_proj_bias" | "gate_up_proj_blocks" | "gate_up_proj_scales":
            return (experts, gates_and_ups)
        case "down_proj":
            return (experts, inner)
        case "down_proj_blocks" | "down_proj_scales":
            blocks = slice(inner.start // BLOCK_SIZE, -(-inner.stop // BLOCK_SIZE))
            return (experts, slice(None), blocks)
        case "down_proj_bias":
            return (experts,)
    return ()


def _scaled(places: range, times: int = 1) -> slice:
    return slice(places.start * times, places.stop * times)
