"""A CUDA backend from a checkpoint: weights and KV blocks on one GPU, or a part of them on each."""

from __future__ import annotations

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
from engines.native.backends.cuda.memory.room import Need, check_room, kv_budget, work_bytes
from engines.native.backends.cuda.passes.stages import ModelPart
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


def load_cuda(config: NativeConfig, model: ModelConfig) -> CudaBackend:
    """Load the weights and allocate the cache; raises EngineStartError if either cannot be."""
    check_computable(config, model)
    devices = devices_of(config)
    artefact = Artefact(config, model)
    longest = config.max_model_len or model.max_position_embeddings
    split = split_layers(model.num_hidden_layers, len(devices))
    shapes = [part_of(model, layers) for layers in split]
    # A full GPU is reported before the load.
    for device, shape, size in zip(devices, shapes, artefact.weights_bytes(split), strict=True):
        check_room(device, Need.of(shape, config, size))
    card, drafts = Card.of(devices[0]), draft_capacity(config, model)
    wait_for_kernels = artefact.kernels_ahead(card, drafts.get("max_drafts", 0))
    weights = artefact.weights(longest, [*zip(split, devices, strict=True)])
    torch.cuda.empty_cache()

    def tune(choices: CardChoices) -> CardChoices:
        most, size = config.max_num_seqs, config.block_size
        return measured(choices, Shape(model), weights[0], size, most)

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
        )


def devices_of(config: NativeConfig) -> list[torch.device]:
    """The GPUs that share the layers; raises EngineStartError where they cannot."""
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
    return devices


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
