"""Every launch of a model's steps, found without a GPU: a backend on torch's meta device."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from engines.native.backends.base import Capacity
from engines.native.backends.cuda.backend import CudaBackend
from engines.native.backends.cuda.choices.of_card import MAX_ROWS, CardChoices
from engines.native.backends.cuda.kernels.launch import KernelLaunch, Pointer, instead
from engines.native.backends.cuda.memory.adapter_room import AdapterRoom
from engines.native.backends.cuda.passes.stages import ModelPart
from engines.native.backends.cuda.steps.shape import Shape
from engines.native.backends.cuda.steps.verify import MAX_DRAFTS
from engines.native.backends.cuda.weights.model import LayerWeights, ModelWeights, PackedExperts
from engines.native.config import ModelConfig, NativeConfig
from engines.native.kv_pool import FP8
from engines.native.tensor_parallel.shard import embedded_by, part_of, shard_of, vocabulary_of

MAX_TOKENS: Final = 8192  # of a chunk, in any profile
BLOCK_SIZE: Final = 64  # of every profile for GPUs
_META: Final = torch.device("meta")
_NUM_BLOCKS: Final = 4096


@dataclass(frozen=True, slots=True)
class DistinctLaunch:
    """A launch that needs a compiled kernel of its own."""

    kernel: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    options: dict[str, Any]

    @property
    def name(self) -> str:
        """The kernel's name in its source."""
        return str(self.kernel.fn.__name__)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The sizes that an engine's steps have; by default those of any profile, drafts included."""

    max_rows: int = MAX_ROWS
    max_tokens: int = MAX_TOKENS
    max_drafts: int = MAX_DRAFTS
    block_size: int = BLOCK_SIZE
    is_batch_invariant: bool = False
    tensor_parallel: int = 1
    max_adapters: int = 0
    max_adapter_rank: int = 0


def launches_of(
    model: ModelConfig,
    choices: CardChoices,
    *,
    is_packed: bool = True,
    kv_dtype: torch.dtype = torch.bfloat16,
    wanted: Wanted = Wanted(),
) -> list[DistinctLaunch]:
    """The launches of all step sizes that are wanted, each once.

    `kv_dtype`: of the cache.
    """
    found: dict[Any, DistinctLaunch] = {}

    def note(launch: KernelLaunch) -> None:
        args = tuple(Pointer(arg) if isinstance(arg, Tensor) else arg for arg in launch.args)
        launch = launch._replace(args=args)
        found.setdefault(launch.machine_code, DistinctLaunch(*launch))

    model = _short(model)
    longest = model.max_position_embeddings
    size = wanted.block_size
    capacity = Capacity(_NUM_BLOCKS, size, longest, max_drafts=wanted.max_drafts)
    layers = max(model.layer_types.count(kind) for kind in model.layer_types)

    def part(shape: ModelConfig, tokens: int, columns: int) -> ModelPart:
        values = size * 2 * shape.kv_size
        cache = torch.empty((layers, _NUM_BLOCKS, values), dtype=kv_dtype, device=_META)
        return ModelPart(shape, _weights(shape, longest, is_packed, tokens, columns), cache)

    with instead(note), torch.inference_mode():
        parts = [part(*each) for each in _shapes(model, wanted.tensor_parallel)]
        CudaBackend(
            model,
            parts,
            capacity,
            wanted.max_rows,
            wanted.max_tokens,
            is_batch_invariant=wanted.is_batch_invariant,
            choices=choices,
            are_ranks=wanted.tensor_parallel > 1,
            adapters=AdapterRoom.fitting(wanted.max_adapters, wanted.max_adapter_rank),
        )
    return list(found.values())


def fp8_launches_of(model: ModelConfig, choices: CardChoices) -> list[DistinctLaunch]:
    """Those that read or write a KV cache in 8 bits."""
    return [
        launch
        for launch in launches_of(model, choices, kv_dtype=FP8)
        if any(isinstance(arg, Pointer) and arg.dtype == FP8 for arg in launch.args)
    ]


def _short(model: ModelConfig) -> ModelConfig:
    """The same with as few layers as have every launch: a first one, and one of each kind."""
    kinds = model.layer_types
    num = max(2, *(kinds.index(kind) + 1 for kind in set(kinds)))
    return replace(model, num_hidden_layers=num, layer_types=kinds[:num])


def _shapes(model: ModelConfig, num_ranks: int) -> list[tuple[ModelConfig, int, int]]:
    """Each rank's shape, rows of the embedding and columns of the logits."""
    if num_ranks == 1:
        return [(model, model.vocab_size, model.vocab_size)]
    config = NativeConfig(Path(), "cuda", "bfloat16", num_gpus=num_ranks, tensor_parallel=num_ranks)
    shards = [shard_of(model, config, rank) for rank in range(num_ranks)]
    return [
        (part_of(model, shard), embedded_by(model, shard), len(vocabulary_of(model, shard)))
        for shard in shards
    ]


def _weights(
    model: ModelConfig, num_positions: int, is_packed: bool, tokens: int, columns: int
) -> ModelWeights:
    """Weights of the model's shape without values."""
    shape = Shape(model)

    def make(*size: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.empty(size, dtype=dtype, device=_META)

    def experts(rows: int, inputs: int) -> PackedExperts:
        num, bias = model.num_local_experts, make(model.num_local_experts, rows)
        if not is_packed:
            return PackedExperts(make(num, rows, inputs), make(4, dtype=torch.int32), bias)
        words = make(num, rows // 16, 2 * inputs, dtype=torch.int32)
        return PackedExperts(words, make(num, rows // 16, inputs // 6, dtype=torch.int32), bias)

    def layer() -> LayerWeights:
        return LayerWeights(
            attention_norm=make(model.hidden_size),
            qkv=make(shape.qkv_size, model.hidden_size),
            qkv_bias=make(shape.qkv_size),
            sinks=make(model.num_attention_heads),
            out=make(model.hidden_size, model.q_size),
            out_bias=make(model.hidden_size),
            moe_norm=make(model.hidden_size),
            router=make(model.num_local_experts, model.hidden_size),
            router_bias=make(model.num_local_experts),
            gate_up=experts(2 * model.intermediate_size, shape.hidden_stride),
            down=experts(model.hidden_size, shape.inner_stride),
        )

    positions = (num_positions, model.head_dim // 2)
    return ModelWeights(
        embedding=make(tokens, model.hidden_size),
        layers=[layer() for _ in range(model.num_hidden_layers)],
        norm=make(model.hidden_size),
        head=make(columns, model.hidden_size),
        cosines=make(*positions, dtype=torch.float32),
        sines=make(*positions, dtype=torch.float32),
    )
