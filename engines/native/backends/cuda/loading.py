"""A CUDA backend from a checkpoint: weights and KV blocks on one GPU, or a part of them on each."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import torch

from engines.errors import EngineStartError
from engines.native.backends.base import Capacity
from engines.native.backends.cpu.memory import check_host_kv
from engines.native.backends.cuda.artefact.kept import Artefact
from engines.native.backends.cuda.backend import CudaBackend
from engines.native.backends.cuda.card import Card
from engines.native.backends.cuda.choices.of_card import CardChoices
from engines.native.backends.cuda.limits import check_computable
from engines.native.backends.cuda.measuring import measured
from engines.native.backends.cuda.memory.adapter_room import AdapterRoom
from engines.native.backends.cuda.memory.room import (
    Need,
    check_room,
    kv_budget,
    tell_unequal,
    work_bytes,
)
from engines.native.backends.cuda.passes.stages import ModelPart
from engines.native.backends.cuda.ranks.pace import tell_slow
from engines.native.backends.cuda.steps.shape import Shape
from engines.native.backends.cuda.steps.verify import draft_capacity
from engines.native.backends.cuda.weights.model import ModelWeights
from engines.native.config import ModelConfig, NativeConfig
from engines.native.kv_pool import (
    cache_dtype,
    choose_num_blocks,
    layers_per_group,
    longest_sequence,
    num_host_blocks,
)
from engines.native.layer_split import part_of, split_layers
from engines.native.tensor_parallel import shard as ranks
from engines.native.tensor_parallel.shard import Shard, embedded_by, shard_of, vocabulary_of


def load_cuda(config: NativeConfig, model: ModelConfig) -> CudaBackend:
    """Load the weights and allocate the cache; raises EngineStartError if either cannot be."""
    check_computable(config, model)
    devices = devices_of(config)
    longest = config.max_model_len or model.max_position_embeddings
    of_ranks = config.tensor_parallel > 1
    shared = RankParts(config, model) if of_ranks else LayerParts(config, model)
    artefact, shapes = shared.artefact, shared.shapes
    # A full GPU is reported before the load.
    for device, shape, size in zip(devices, shapes, shared.weights_bytes(), strict=True):
        check_room(device, Need.of(shape, config, size))
    if of_ranks:
        tell_unequal(devices)
        tell_slow(devices)
    card, drafts = Card.of(devices[0]), draft_capacity(config, model)
    wait_for_kernels = artefact.kernels_ahead(card, drafts.get("max_drafts", 0))
    weights = shared.weights(longest, devices)
    torch.cuda.empty_cache()

    def tune(choices: CardChoices) -> CardChoices:
        most, size = config.max_num_seqs, config.block_size
        one = next(i for i, part in enumerate(weights) if part.begins)  # it embeds what it computes
        with torch.cuda.device(devices[one]):
            return measured(choices, Shape(shapes[one]), weights[one], size, most)

    choices = artefact.choices(card, tune)
    torch.cuda.empty_cache()
    check_host_kv(config)
    num_blocks = min(
        num_blocks_on(config, shape, device) for shape, device in zip(shapes, devices, strict=True)
    )
    capacity = Capacity(
        num_blocks,
        config.block_size,
        longest_sequence(model, config, num_blocks),
        **drafts,
    )
    parts = [
        with_blocks(shape, each, num_blocks, config.block_size, cache_dtype(config))
        for shape, each in zip(shapes, weights, strict=True)
    ]
    wait_for_kernels()
    with artefact.kernels(card.capability):
        return CudaBackend(
            model,
            parts,
            capacity,
            config.max_num_seqs,
            config.max_num_batched_tokens,
            is_batch_invariant=config.batch_invariant,
            choices=choices,
            num_host_blocks=num_host_blocks(shapes, config),
            are_ranks=of_ranks,
            adapters=None if of_ranks else AdapterRoom.of(config),
        )


class LayerParts:
    """Neighbouring layers for each GPU."""

    def __init__(self, config: NativeConfig, model: ModelConfig) -> None:
        self.artefact = Artefact(config, model)
        self._split = split_layers(model.num_hidden_layers, config.num_gpus)
        self.shapes = [part_of(model, layers) for layers in self._split]

    def weights_bytes(self) -> list[int]:
        return self.artefact.weights_bytes(self._split)

    def weights(self, num_positions: int, devices: list[torch.device]) -> list[ModelWeights]:
        return self.artefact.weights(num_positions, [*zip(self._split, devices, strict=True)])


class RankParts:
    """Heads and columns of every layer for each GPU; the last one has the embedding."""

    def __init__(self, config: NativeConfig, model: ModelConfig) -> None:
        size, self._model = config.tensor_parallel, model
        self._shards = [shard_of(model, config, rank) for rank in range(size)]
        self._artefacts = [Artefact(config, model, shard) for shard in self._shards]
        self.artefact = self._artefacts[0]
        self.shapes = [ranks.part_of(model, shard) for shard in self._shards]

    def weights_bytes(self) -> list[int]:
        layers = [range(self._model.num_hidden_layers)]
        return [artefact.weights_bytes(layers)[0] for artefact in self._artefacts]

    def weights(self, num_positions: int, devices: list[torch.device]) -> list[ModelWeights]:
        return [
            self._of_rank(artefact, shard, num_positions, device)
            for artefact, shard, device in zip(self._artefacts, self._shards, devices, strict=True)
        ]

    def _of_rank(
        self, artefact: Artefact, shard: Shard, num_positions: int, device: torch.device
    ) -> ModelWeights:
        layers = range(self._model.num_hidden_layers)
        [loaded] = artefact.weights(num_positions, [(layers, device)])
        columns, num = vocabulary_of(self._model, shard), embedded_by(self._model, shard)
        return replace(
            loaded,
            head=loaded.head[columns.start : columns.stop].clone(),
            embedding=loaded.embedding if num else loaded.embedding[:0].clone(),
        )


def devices_of(config: NativeConfig) -> list[torch.device]:
    """The GPUs that share the model; raises EngineStartError where they cannot."""
    if config.num_gpus == 1:
        return [torch.device("cuda")]
    there = torch.cuda.device_count()
    if there < config.num_gpus:
        raise EngineStartError(
            f"num_gpus is {config.num_gpus}, and {there} of them can be seen here"
            " (CUDA_VISIBLE_DEVICES)"
        )
    devices = [torch.device("cuda", index) for index in range(config.num_gpus)]
    cards = {Card.of(device) for device in devices}
    if len(cards) > 1:
        names = " and ".join(sorted(card.name for card in cards))
        raise EngineStartError(
            f"num_gpus is {config.num_gpus}, and the GPUs are of several kinds: {names};"
            " select GPUs of one kind (CUDA_VISIBLE_DEVICES)"
        )
    if config.tensor_parallel > 1:
        check_reach(devices)
    return devices


def check_reach(devices: list[torch.device]) -> None:
    """Refuse ranks that cannot write into each other's memory."""
    for one, other in permutations(devices, 2):
        if not torch.cuda.can_device_access_peer(one, other):
            raise EngineStartError(
                f"GPU {one.index} cannot reach the memory of GPU {other.index}, as ranks of"
                " tensor_parallel must: use a profile with tp 1 or one that splits layers (-pp), or"
                " select GPUs that NVLink or one PCIe root joins (CUDA_VISIBLE_DEVICES,"
                " `nvidia-smi topo -p2p r`)"
            )


def num_blocks_on(config: NativeConfig, shape: ModelConfig, device: torch.device) -> int:
    """The KV blocks of a part's layers that its GPU has room for beside the loaded weights."""
    weights, work = torch.cuda.memory_reserved(device), work_bytes(shape, config)
    check_room(device, Need.of(shape, config, weights))
    memory = torch.cuda.mem_get_info(device)
    budget = kv_budget(*memory, config.memory_fraction, work, weights)
    return choose_num_blocks(shape, config, budget)


def with_blocks(
    shape: ModelConfig,
    weights: ModelWeights,
    num_blocks: int,
    block_size: int,
    dtype: torch.dtype = torch.bfloat16,
) -> ModelPart:
    """A part of the model with KV blocks on the device that its weights are on."""
    size = (layers_per_group(shape), num_blocks, block_size * 2 * shape.kv_size)
    cache = torch.zeros(size, dtype=dtype, device=weights.cosines.device)
    return ModelPart(shape, weights, cache)
