"""From a published checkpoint to weights in the kernels' layout on the device."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from engines import start_steps
from engines.errors import EngineStartError
from engines.native.artefact.upload import to_device
from engines.native.backends.cuda.weights import fragment_order
from engines.native.backends.cuda.weights.model import LayerWeights, ModelWeights, PackedExperts
from engines.native.config import ModelConfig
from engines.native.rope import rotation_tables
from engines.native.weights import EMBEDDING, HEAD, NORM, CheckpointTensors

_EXPERTS_AT_ONCE = 8  # packing takes some sixteen times the room of what it packs
_NO_SCALES = torch.zeros(4, dtype=torch.int32)  # of experts that are not packed; never read


def load_weights(
    checkpoint: CheckpointTensors,
    config: ModelConfig,
    num_positions: int,
    device: torch.device,
    layers: range | None = None,
) -> ModelWeights:
    """Read every tensor, or those of some layers, with the experts in the kernels' order."""
    layers = range(config.num_hidden_layers) if layers is None else layers
    loaded = [load_layer(checkpoint, i, device) for i in layers]
    ends = load_ends(checkpoint, config, device, layers)
    return assemble(ends, loaded, config, num_positions, device, layers)


def names_of_ends(config: ModelConfig, layers: range) -> dict[str, str]:
    """The tensors of no layer that go with these layers: their field of ModelWeights, and name."""
    names = {"embedding": EMBEDDING} if layers.start == 0 else {}
    if layers.stop == config.num_hidden_layers:
        is_tied = config.tie_word_embeddings
        names |= {"norm": NORM, **({"embedding": EMBEDDING} if is_tied else {"head": HEAD})}
    return names


def load_ends(
    checkpoint: CheckpointTensors, config: ModelConfig, device: torch.device, layers: range
) -> dict[str, Tensor]:
    """The tensors of names_of_ends(), by their field; no head where it is the embedding."""
    load = _Loader(checkpoint, device)
    return {field: load(name) for field, name in names_of_ends(config, layers).items()}


def load_layer(checkpoint: CheckpointTensors, index: int, device: torch.device) -> LayerWeights:
    start_steps.begin(f"loading weights, layer {index + 1}")
    return _layer(_Loader(checkpoint, device), f"model.layers.{index}.")


def assemble(
    ends: Mapping[str, Tensor],
    layers: list[LayerWeights],
    config: ModelConfig,
    num_positions: int,
    device: torch.device,
    of: range | None = None,
) -> ModelWeights:
    """The weights of a model, or of the layers `of` it, from those of layers and ends."""
    of = range(config.num_hidden_layers) if of is None else of
    cosines, sines = rotation_tables(config, num_positions, device)
    nothing = torch.empty((0, config.hidden_size), dtype=torch.bfloat16, device=device)
    begins, is_end = of.start == 0, of.stop == config.num_hidden_layers
    head = ends["embedding" if config.tie_word_embeddings else "head"] if is_end else nothing
    return ModelWeights(
        embedding=ends["embedding"] if begins else nothing,
        layers=layers,
        norm=ends["norm"] if is_end else nothing,
        head=head,
        cosines=cosines,
        sines=sines,
    )


class _Loader:
    def __init__(self, checkpoint: CheckpointTensors, device: torch.device) -> None:
        self._checkpoint, self._device = checkpoint, device

    def __call__(self, name: str) -> Tensor:
        return to_device(self._checkpoint.tensor(name, torch.bfloat16), self._device).contiguous()

    def experts(self, name: str, bias: str, is_gate_up: bool) -> PackedExperts:
        if not self._checkpoint.is_packed(name):
            values = self(name).transpose(1, 2)  # (experts, rows, inputs)
            words = fragment_order.plain(values, is_gate_up=is_gate_up)
            return PackedExperts(words, _NO_SCALES.to(self._device), self(bias))
        try:
            packed = [
                fragment_order.pack(blocks, scales, is_gate_up=is_gate_up)
                for blocks, scales in self._checkpoint.packed(name, self._device, _EXPERTS_AT_ONCE)
            ]
        except ValueError as error:
            raise EngineStartError(f"tensor {name}: {error}") from error
        words, scales = (torch.cat(tensors) for tensors in zip(*packed, strict=True))
        return PackedExperts(words, scales, self(bias))


def _layer(load: _Loader, prefix: str) -> LayerWeights:
    attention, mlp = f"{prefix}self_attn.", f"{prefix}mlp."

    def joined(kind: str) -> Tensor:
        return torch.cat([load(f"{attention}{name}_proj.{kind}") for name in "qkv"])

    return LayerWeights(
        attention_norm=load(f"{prefix}input_layernorm.weight"),
        qkv=joined("weight"),
        qkv_bias=joined("bias"),
        sinks=load(f"{attention}sinks"),
        out=load(f"{attention}o_proj.weight"),
        out_bias=load(f"{attention}o_proj.bias"),
        moe_norm=load(f"{prefix}post_attention_layernorm.weight"),
        router=load(f"{mlp}router.weight"),
        router_bias=load(f"{mlp}router.bias"),
        gate_up=load.experts(
            f"{mlp}experts.gate_up_proj", f"{mlp}experts.gate_up_proj_bias", is_gate_up=True
        ),
        down=load.experts(
            f"{mlp}experts.down_proj", f"{mlp}experts.down_proj_bias", is_gate_up=False
        ),
    )
