"""Whether a GPU has room for the weights and K/V, and what an operator reads where it has not."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from engines.errors import EngineStartError
from engines.native.backends.cuda.memory.adapter_room import adapters_bytes
from engines.native.backends.cuda.memory.host_blocks import STAGING_BYTES
from engines.native.backends.cuda.memory.part_sums import part_sum_bytes
from engines.native.backends.cuda.ranks.exchange import exchange_bytes
from engines.native.config import ModelConfig, NativeConfig
from engines.native.kv_pool import MemoryBudget, block_bytes, least_pool
from engines.parts import facets

_GRAPHS: Final = 800 << 20  # graphs, cuBLAS, and what single rows ask of the sampler
_MOST_OF_FREE: Final = 0.9  # unless memory_fraction is more
_SAMPLER: Final = 16  # of a sequence and vocabulary entry: logits of two steps, a copy, counts
_UNTOLD: Final = 1 << 30  # the driver and a context without weights take less
_LESS: Final = 0.9  # of the free memory of the GPU that has the most
_PROCESS: Final = re.compile(r"process +(\d+) uses +([\d.]+) MB")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """A GPU's memory at one moment, in bytes; what this engine holds of it counts as free."""

    name: str
    total: int
    free: int

    @classmethod
    def read(cls, device: torch.device) -> DeviceMemory:
        """Ask the driver and the allocator."""
        free, total = torch.cuda.mem_get_info(device)
        own = torch.cuda.memory_reserved(device)
        name = torch.cuda.get_device_name(device)
        if device.index is not None:
            name = f"GPU {device.index} ({name})"
        return cls(name, total, free + own)


@dataclass(frozen=True, slots=True)
class Need:
    """What an engine cannot start without, in bytes; `pool` says which K/V that is."""

    weights: int
    work: int
    kv: int
    pool: str
    remedy: str  # what makes `kv` smaller

    @classmethod
    def of(cls, model: ModelConfig, config: NativeConfig, weights: int) -> Need:
        """K/V beside these weights."""
        each, least = block_bytes(model, config), least_pool(model, config)
        work = work_bytes(model, config)
        if config.num_kv_blocks is not None:
            blocks = config.num_kv_blocks
            return cls(weights, work, blocks * each, f"{blocks} blocks", "lower num_kv_blocks")
        pool = f"one sequence of {least.num_tokens} tokens"
        remedy = "lower max_model_len (NIM_MAX_MODEL_LEN)"
        if config.max_adapters:
            remedy += ", NIM_MAX_GPU_LORAS or NIM_MAX_LORA_RANK"
        return cls(weights, work, least.num_blocks * each, pool, remedy)

    @property
    def without_kv(self) -> int:
        """Bytes needed besides K/V."""
        return self.weights + self.work

    @property
    def total(self) -> int:
        return self.without_kv + self.kv


def work_bytes(model: ModelConfig, config: NativeConfig) -> int:
    """Bytes of graphs, of one step's activations and of the sampler's rows."""
    numbers = 6 * model.hidden_size + 2 * (model.q_size + model.kv_size)
    numbers += model.num_experts_per_tok * (3 * model.intermediate_size + model.hidden_size)
    activations = config.max_num_batched_tokens * 2 * numbers
    activations += part_sum_bytes(model, config.max_num_seqs)
    staging = STAGING_BYTES if config.host_kv_bytes else 0
    size, rows = config.tensor_parallel, max(config.max_num_batched_tokens, config.max_num_seqs)
    if size > 1:
        activations += exchange_bytes(model.hidden_size, rows, size)
    of_parts: int = sum(facets("memory", int).values())
    beside = _GRAPHS + staging + of_parts + adapters_bytes(model, config)
    return beside + activations + config.max_num_seqs * model.vocab_size * _SAMPLER


def kv_budget(
    free: int, total: int, memory_fraction: float, work: int, weights: int
) -> MemoryBudget:
    """Bytes for K/V beside the loaded weights and `work`, the bytes of work_bytes().

    `free` and `total`: of the GPU. The engine's share is memory_fraction of the GPU. A part of what
    other programs leave stays free, unless one sequence of the greatest length needs it.
    """
    left = max(free - work, 0)
    share = max(int(total * memory_fraction) - weights - work, 0)
    left_by_others = free + weights
    spared = int(left_by_others * (1 - max(memory_fraction, _MOST_OF_FREE)))
    return MemoryBudget(left, min(share, left), min(share, max(left - spared, 0)))


def check_room(device: torch.device, need: Need) -> None:
    """Raise EngineStartError with all figures where the engine cannot fit."""
    memory = DeviceMemory.read(device)
    if need.total > memory.free:
        raise EngineStartError(shortage(memory, need, _other_processes(device)))


def tell_unequal(devices: Sequence[torch.device]) -> None:
    """Log each of the ranks' GPUs that has less free memory than another: K/V blocks are as many on
    all."""
    memories = [DeviceMemory.read(device) for device in devices]
    most = max(memory.free for memory in memories)
    for device, memory in zip(devices, memories, strict=True):
        if memory.free < _LESS * most:
            log.warning(
                "%s has %s free, and another of the GPUs that share each layer %s: all get as much"
                " K/V as this one has room for; %s",
                memory.name, _gb(memory.free), _gb(most),
                _cause_and_remedy(memory, _other_processes(device)),
            )  # fmt: skip


def shortage(memory: DeviceMemory, need: Need, others: Mapping[int, int]) -> str:
    """What to tell of a GPU that is too full; `others`: bytes of processes by their pid."""
    remedies = [_cause_and_remedy(memory, others)]
    if need.without_kv < memory.free:
        remedies.append(need.remedy)
    return (
        f"{memory.name} has {_gb(memory.free)} of {_gb(memory.total)} free, and the engine needs"
        f" {_gb(need.total)}: {_gb(need.weights)} for the weights, {_gb(need.work)} for graphs"
        f" and a step's work, and {_gb(need.kv)} at least for K/V of {need.pool};"
        f" {', or '.join(remedies)}"
    )


def parse_processes(listed: str, own_pid: int) -> dict[int, int]:
    """Bytes by pid, largest first, from what torch.cuda.list_gpu_processes prints."""
    found = [(int(pid), int(float(mib) * (1 << 20))) for pid, mib in _PROCESS.findall(listed)]
    found.sort(key=lambda each: -each[1])
    return {pid: size for pid, size in found if pid != own_pid}


def _cause_and_remedy(memory: DeviceMemory, others: Mapping[int, int]) -> str:
    held, another = memory.total - memory.free, "select another GPU (CUDA_VISIBLE_DEVICES)"
    if held < _UNTOLD:
        return f"use a GPU with more memory, or {another}"
    if others:
        names = ", ".join(f"process {pid}: {_gb(size)}" for pid, size in others.items())
        return f"other processes use {_gb(held)} ({names}): stop them, {another}"
    return (
        f"others hold {_gb(held)}, and NVML names none of them (nvidia-smi does, outside of a"
        f" container): end them, {another}"
    )


def _other_processes(device: torch.device) -> dict[int, int]:
    try:
        listed = torch.cuda.list_gpu_processes(device)
    except Exception:  # NVML refuses, or does not know what a process takes
        return {}
    return parse_processes(listed, os.getpid())


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
