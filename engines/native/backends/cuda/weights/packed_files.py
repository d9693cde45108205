"""Packed weights as files: one of safetensors for each layer, and one for the rest."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from engines.native.artefact.store import Checksums, Damaged, Recipe, StoredPart, checksum
from engines.native.artefact.upload import upload
from engines.native.backends.cuda.weights import load
from engines.native.backends.cuda.weights.fragment_order import padded
from engines.native.backends.cuda.weights.model import LayerWeights, ModelWeights, PackedExperts
from engines.native.config import ModelConfig
from engines.native.weights import CheckpointTensors, layer_of, tensor_specs

_ENDS: Final = "ends"
_HEADERS: Final = 1 << 20  # bytes, and more than the files' take
_WRITERS: Final = 4  # files at once, and so layers in the host's memory
_EXPERTS: Final = ("gate_up", "down")


def recipe(checkpoint: CheckpointTensors, config: ModelConfig, device: torch.device) -> Recipe:
    """The recipe of a checkpoint's packed files: packed one by one, written several at a time."""

    def write(folder: Path) -> Checksums:
        checksums: dict[str, str] = {}
        with ThreadPoolExecutor(_WRITERS, thread_name_prefix="write") as writers:
            waiting: deque[Future[dict[str, str]]] = deque()
            for file, tensors in _packed(checkpoint, config, device):
                if len(waiting) == _WRITERS:
                    checksums |= waiting.popleft().result()
                waiting.append(writers.submit(_save, tensors, folder, file))
            for done in waiting:
                checksums |= done.result()
        return checksums

    return Recipe(num_bytes(checkpoint, config) + _HEADERS, write)


def _packed(
    checkpoint: CheckpointTensors, config: ModelConfig, device: torch.device
) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """The tensors of each file, made when it is their turn."""
    every = range(config.num_hidden_layers)
    yield _ENDS, load.load_ends(checkpoint, config, device, every)
    for index in every:
        yield _file_name(index), _named(load.load_layer(checkpoint, index, device))


def read(
    found: StoredPart,
    config: ModelConfig,
    num_positions: int,
    device: torch.device,
    layers: range | None = None,
) -> ModelWeights:
    """The weights of packed files, or of some layers, on a device, every byte checked there;
    raises Damaged."""
    layers = range(config.num_hidden_layers) if layers is None else layers
    files = [_ENDS, *(_file_name(i) for i in layers)]
    wanted_ends = {f"{_ENDS}.{field}" for field in load.names_of_ends(config, layers)}

    def is_wanted(name: str) -> bool:
        file = name.partition(".")[0]
        return file in files and (file != _ENDS or name in wanted_ends)

    paths = [found.folder / f"{name}.safetensors" for name in files]
    tensors = upload(paths, device, is_wanted)
    for name in sorted({*filter(is_wanted, found.checksums), *tensors}):
        has = checksum(tensors[name]) if name in tensors else "nothing"
        if has != found.checksums.get(name):
            raise Damaged(f"tensor {name} is {has}, not {found.checksums.get(name)}")
    ends, *others = (_of_file(tensors, name) for name in files)
    try:
        whole = [_layer_of(layer) for layer in others]
        return load.assemble(ends, whole, config, num_positions, device, layers)
    except KeyError as error:
        raise Damaged(f"tensor {error} is missing") from error


def _save(tensors: dict[str, Tensor], folder: Path, file: str) -> dict[str, str]:
    named = {f"{file}.{name}": tensor for name, tensor in tensors.items()}
    checksums = {name: checksum(tensor) for name, tensor in named.items()}
    host = {name: tensor.to("cpu", copy=True) for name, tensor in named.items()}
    try:
        save_file(host, folder / f"{file}.safetensors")
    except SafetensorError as error:  # the library's own, also for a full disk
        raise OSError(str(error)) from error
    return checksums


def _file_name(layer: int) -> str:
    return f"layer-{layer:03d}"


def _of_file(tensors: dict[str, Tensor], file: str) -> dict[str, Tensor]:
    start = f"{file}."
    return {n.removeprefix(start): t for n, t in tensors.items() if n.startswith(start)}


def _named(layer: LayerWeights) -> dict[str, Tensor]:
    """The tensors of a layer; those of its experts are named `gate_up.words` and so on."""
    tensors: dict[str, Tensor] = {}
    for each in fields(LayerWeights):
        value = getattr(layer, each.name)
        if isinstance(value, PackedExperts):
            tensors |= {
                f"{each.name}.{part.name}": getattr(value, part.name)
                for part in fields(PackedExperts)
            }
        else:
            tensors[each.name] = value
    return tensors


def _layer_of(tensors: dict[str, Tensor]) -> LayerWeights:
    values: dict[str, Any] = {
        name: PackedExperts(**{p.name: tensors[f"{name}.{p.name}"] for p in fields(PackedExperts)})
        for name in _EXPERTS
    }
    names = {each.name for each in fields(LayerWeights)}
    values |= {name: tensors[name] for name in names - values.keys()}
    return LayerWeights(**values)


def num_bytes(
    checkpoint: CheckpointTensors, config: ModelConfig, layers: range | None = None
) -> int:
    """Of all tensors, or of those that go with some layers, in the kernels' layout."""
    layers = range(config.num_hidden_layers) if layers is None else layers
    wanted = {*load.names_of_ends(config, layers).values()}
    total = 0
    for name, spec in tensor_specs(config).items():
        if name not in wanted and layer_of(name) not in layers:
            continue
        if not spec.is_packable:
            total += 2 * math.prod(spec.shape)
            continue
        experts, num_in, num_out = spec.shape
        numbers = experts * num_out * padded(num_in)
        is_packed = checkpoint.is_packed(name)
        total += numbers // 2 + numbers // 24 if is_packed else 2 * numbers  # half a byte, scales
    return total


def stored_bytes(folder: Path, config: ModelConfig, layers: range) -> int:
    files = sum((folder / f"{_file_name(i)}.safetensors").stat().st_size for i in layers)
    specs = tensor_specs(config)
    ends = load.names_of_ends(config, layers).values()
    return files + sum(2 * math.prod(specs[name].shape) for name in ends)
