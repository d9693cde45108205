"""A LoRA adapter in PEFT's format: what it adds to which tensors of a gpt-oss checkpoint.

A linear layer's weight (out, in) gets scaling * B A. Of the experts, PEFT keeps all in one pair
(`target_parameters`): A is (experts * rank, in), and B is (out, rank * experts), rank by rank.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from engines.native.mapped_tensor import DTYPES, mapped_tensor
from engines.native.weights import TensorSpec, shard_entries
from parts.lora.files import EXPERTS, NAME, PREFIX, WEIGHTS, AdapterError, alpha_of, read_config

_PROJECTIONS: Final = ("gate_up_proj", "down_proj")


@dataclass(frozen=True, slots=True)
class LowRank:
    """What is added to a tensor: left (experts, m, rank) times right (experts, rank, n).

    `base`: the tensor itself, where the adapter brings it.
    """

    left: Tensor
    right: Tensor
    base: Tensor | None = None

    def of(self, first: int, end: int) -> Tensor:
        """What the experts [first, end) get, (experts, m, n), in float32."""
        return torch.bmm(self.left[first:end].float(), self.right[first:end].float())


def read_adapter(
    folder: Path, specs: Mapping[str, TensorSpec], *, is_read: bool = False
) -> dict[str, LowRank]:
    """The changes by the checkpoint's name of the tensor; raises AdapterError.

    `specs`: of the checkpoint's tensors (engines/native/weights.py). `is_read`: no tensor is a
    mapped file.
    """
    if not (folder / WEIGHTS).is_file():
        raise AdapterError(f"{folder}: has no {WEIGHTS}; name a folder that PEFT saved")
    config = read_config(folder)
    pairs: dict[str, dict[str, Tensor]] = {}
    for stored, tensor in _tensors(folder / WEIGHTS, is_read=is_read):
        found = NAME.fullmatch(stored.removeprefix(PREFIX))
        if found is None:
            raise _unusable(folder, stored, "is not a LoRA matrix of a linear layer or of experts")
        pairs.setdefault(found[1] + found[2], {})[found[3]] = tensor
    is_swapped = any(_is_swapped(pair, specs) for pair in pairs.values())
    changes: dict[str, LowRank] = {}
    for module, pair in pairs.items():
        if {"lora_A", "lora_B"} - pair.keys():
            raise _unusable(folder, module, "has only one of lora_A and lora_B")
        name = _target(module, pair, specs, is_swapped=is_swapped)
        if name not in specs or name in changes:
            shapes = " and ".join(str([*pair[each].shape]) for each in ("lora_A", "lora_B"))
            raise _unusable(folder, module, f"has shapes {shapes}: no tensor of this checkpoint")
        changes[name] = _change(name, pair, specs[name], config, is_swapped=is_swapped)
    if not changes:
        raise AdapterError(f"{folder / WEIGHTS}: holds no tensors")
    return changes


def _tensors(path: Path, *, is_read: bool) -> Iterator[tuple[str, Tensor]]:
    for name, entry in shard_entries(path).items():
        if entry.dtype not in DTYPES:
            raise AdapterError(f"{path}: tensor {name} has dtype {entry.dtype}; use {[*DTYPES]}")
        dtype = DTYPES[entry.dtype]
        yield name, mapped_tensor(path, entry.begin, dtype, entry.shape, is_read=is_read)


def _is_swapped(pair: Mapping[str, Tensor], specs: Mapping[str, TensorSpec]) -> bool:
    """Whether A is by the outputs: some releases of PEFT took experts as (out, in).

    Told by `gate_up_proj`, of which both sides differ; `down_proj` of gpt-oss is square.
    """
    spec = specs[f"model.layers.0.{EXPERTS}.gate_up_proj"]
    num_in, num_out = spec.shape[1:]
    if len(pair) < 2 or num_in == num_out:
        return False
    return (pair["lora_A"].shape[-1], pair["lora_B"].shape[0]) == (num_out, num_in)


def _target(
    module: str, pair: Mapping[str, Tensor], specs: Mapping[str, TensorSpec], *, is_swapped: bool
) -> str:
    """The checkpoint's tensor of this module whose shape fits; empty if there is none."""
    sides = pair["lora_A"].shape[-1], pair["lora_B"].shape[0]
    experts = module.replace(".base_layer", "")
    if not experts.endswith(EXPERTS):
        name = f"{module}.weight"
        return name if name in specs and specs[name].shape == sides[::-1] else ""
    wanted = sides[::-1] if is_swapped else sides
    names = [f"{experts}.{each}" for each in _PROJECTIONS]
    fitting = [name for name in names if name in specs and specs[name].shape[1:] == wanted]
    return fitting[0] if len(fitting) == 1 else ""


def _change(
    name: str,
    pair: Mapping[str, Tensor],
    spec: TensorSpec,
    config: Mapping[str, Any],
    *,
    is_swapped: bool,
) -> LowRank:
    a, b = pair["lora_A"], pair["lora_B"]
    is_experts = len(spec.shape) == 3
    num = spec.shape[0] if is_experts else 1
    rank, rest = divmod(a.shape[0], num)
    if rest or not rank or b.shape[1] != a.shape[0]:
        raise AdapterError(f"{name}: the adapter has {a.shape[0]} rows for {num} experts")
    a = a.view(num, rank, -1)
    b = b.reshape(b.shape[0], rank, num).permute(2, 0, 1)
    alpha = alpha_of(name.removesuffix(".weight"), config)
    b = b * (alpha / (math.sqrt(rank) if config.get("use_rslora") else rank))
    if is_experts and not is_swapped:  # stored as (experts, in, out)
        return LowRank(a.transpose(1, 2), b.transpose(1, 2))
    return LowRank(b, a, pair.get("base_layer"))


def _unusable(folder: Path, name: str, why: str) -> AdapterError:
    return AdapterError(f"{folder / WEIGHTS}: {name} {why}")
