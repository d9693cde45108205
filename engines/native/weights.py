"""The tensors of a published gpt-oss checkpoint: names, shapes, reading them, in MXFP4 or not."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from engines.errors import EngineStartError
from engines.native.artefact.upload import Arriving, Uploads
from engines.native.config import ModelConfig, Quantize, read_json
from engines.native.mapped_tensor import DTYPES, mapped_tensor
from engines.native.mxfp4 import BLOCK_SIZE, BYTES_PER_BLOCK, dequantise, quantise
from engines.native.shard_header import read_header

INDEX: Final = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_FLOATS = frozenset({"F32", "BF16", "F16"})
_BYTES = frozenset({"U8"})

EMBEDDING: Final = "model.embed_tokens.weight"
NORM: Final = "model.norm.weight"
HEAD: Final = "lm_head.weight"

_CPU: Final = torch.device("cpu")
_ROUNDED_AT_ONCE: Final = 4  # experts; rounding is done in float32, in some six tensors of it


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor a model expects.

    A packable tensor (experts, in, out) may instead be stored as MXFP4: `<name>_blocks`
    (experts, out, in / 32, 16) and `<name>_scales` (experts, out, in / 32).
    """

    shape: tuple[int, ...]
    is_packable: bool = False
    dtypes: frozenset[str] = _FLOATS


@dataclass(frozen=True, slots=True)
class _Entry:
    file: Path
    shape: tuple[int, ...]
    dtype: str
    begin: int  # of its bytes in the file


class CheckpointTensors:
    """The tensors of a checkpoint folder; nothing is read before it is asked for.

    `quantize`: packable tensors that the files do not pack are given as if they did, rounded.
    """

    def __init__(
        self,
        model_dir: Path,
        specs: Mapping[str, TensorSpec],
        quantize: Quantize | None = None,
    ) -> None:
        self._specs = specs
        self._entries = read_entries(model_dir)
        self._verify(model_dir)
        self._is_rounded = quantize is not None
        if self._is_rounded:
            self._check_roundable()

    def tensor(self, name: str, dtype: torch.dtype) -> Tensor:
        """Read one expected tensor; a copy only where the stored dtype differs."""
        if not self.is_packed(name):
            return self._read(name).to(dtype)
        experts, num_in, num_out = self.shape(name)
        values = torch.empty((experts, num_out, num_in), dtype=dtype)
        first = 0
        for blocks, scales in self.packed(name, _CPU, experts):
            values[first : first + len(blocks)] = dequantise(blocks, scales, dtype)
            first += len(blocks)
        return values.transpose(1, 2)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of what `tensor` gives."""
        return self._specs[name].shape

    def is_packed(self, name: str) -> bool:
        """Whether a tensor is given as MXFP4: it is stored so, or rounded."""
        return name not in self._entries or (self._is_rounded and self._specs[name].is_packable)

    def packed(
        self, name: str, device: torch.device, at_once: int
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """The blocks and scales of a tensor for which is_packed(), on a device, of at most this
        number of experts at a time."""
        if name in self._entries:  # a mapped file: only pieces of it are in memory
            for values in self._read(name).split(min(at_once, _ROUNDED_AT_ONCE)):
                try:
                    yield quantise(values.to(device).transpose(1, 2))
                except ValueError as error:
                    file = self._entries[name].file
                    raise EngineStartError(f"{file}: tensor {name}: {error}") from error
            return
        stored = (self._read(f"{name}_{part}").split(at_once) for part in ("blocks", "scales"))
        coming: deque[tuple[Arriving, Arriving]] = deque()
        with Uploads(device) as uploads:
            for blocks, scales in zip(*stored, strict=True):
                coming.append((uploads.begin(blocks), uploads.begin(scales)))
                if len(coming) > 1:  # the next is on its way while this one is used
                    yield _arrived(coming.popleft())
            while coming:
                yield _arrived(coming.popleft())

    def _check_roundable(self) -> None:
        for name, spec in self._specs.items():
            if spec.is_packable and name in self._entries and spec.shape[1] % BLOCK_SIZE:
                raise EngineStartError(
                    f"{self._entries[name].file}: tensor {name} has {spec.shape[1]} inputs, not a"
                    f" multiple of {BLOCK_SIZE}: it cannot be rounded to MXFP4; unset NIM_QUANTIZE"
                )

    def stored(self, name: str) -> Tensor:
        """Map one expected tensor into memory in the dtype of its file."""
        return self._read(name)

    def _read(self, name: str) -> Tensor:
        entry = self._entries[name]
        try:
            return mapped_tensor(entry.file, entry.begin, DTYPES[entry.dtype], entry.shape)
        except (OSError, ValueError) as error:
            raise EngineStartError(f"{entry.file}: cannot read tensor {name}: {error}") from error

    def _verify(self, model_dir: Path) -> None:
        expected = self._expected()
        for name, (shape, dtypes) in expected.items():
            entry = self._entries.get(name)
            if entry is None:
                raise EngineStartError(f"{model_dir}: tensor {name} is missing")
            if entry.shape != shape:
                raise EngineStartError(
                    f"{entry.file}: tensor {name} has shape {list(entry.shape)};"
                    f" config.json asks for {list(shape)}"
                )
            if entry.dtype not in dtypes:
                raise EngineStartError(
                    f"{entry.file}: tensor {name} has dtype {entry.dtype};"
                    f" expected one of {sorted(dtypes)}"
                )
        for name, entry in self._entries.items():
            if name not in expected:
                raise EngineStartError(f"{entry.file}: tensor {name} is not part of this model")

    def _expected(self) -> dict[str, tuple[tuple[int, ...], frozenset[str]]]:
        """Name to (shape, dtypes) as stored, MXFP4 pairs spelt out."""
        expected: dict[str, tuple[tuple[int, ...], frozenset[str]]] = {}
        for name, spec in self._specs.items():
            if spec.is_packable and name not in self._entries and self._has_parts(name):
                experts, num_in, num_out = spec.shape
                groups = (experts, num_out, num_in // BLOCK_SIZE)
                expected[f"{name}_blocks"] = ((*groups, BYTES_PER_BLOCK), _BYTES)
                expected[f"{name}_scales"] = (groups, _BYTES)
            else:
                expected[name] = (spec.shape, spec.dtypes)
        return expected

    def _has_parts(self, name: str) -> bool:
        return f"{name}_blocks" in self._entries or f"{name}_scales" in self._entries


def _arrived(pair: tuple[Arriving, Arriving]) -> tuple[Tensor, Tensor]:
    blocks, scales = pair
    return blocks.arrived(), scales.arrived()


def read_entries(model_dir: Path) -> dict[str, _Entry]:
    """Every tensor of the folder, from the headers of the files its index names."""
    index = model_dir / INDEX
    if not index.exists():
        return shard_entries(model_dir / _SINGLE)
    weight_map = _weight_map(index)
    entries: dict[str, _Entry] = {}
    for file in sorted(set(weight_map.values())):
        entries |= shard_entries(model_dir / file)
    for name, file in weight_map.items():
        if name not in entries:
            raise EngineStartError(
                f"{model_dir / file}: tensor {name}, named by {INDEX}, is missing"
            )
    return entries


def _weight_map(index: Path) -> dict[str, str]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise EngineStartError(f"{index}: is not a safetensors index: it has no weight_map")
    for name, file in weight_map.items():
        if not isinstance(file, str) or file in ("", ".", "..") or Path(file).name != file:
            raise EngineStartError(
                f"{index}: {name} is in {str(file)[:80]!r}, which is not a plain file name"
            )
    return weight_map


def shard_entries(path: Path) -> dict[str, _Entry]:
    """Parse one file's header and check that the file holds all it promises."""
    try:
        if path.exists() and not path.is_file():
            raise EngineStartError(f"{path}: is not a regular file")
        size = path.stat().st_size
        _, header, begin = read_header(path)
        entries = {name: _entry(path, begin, name, each) for name, each in header.items()}
    except OSError as error:
        raise EngineStartError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise EngineStartError(f"{path}: is not a safetensors file: {error!r}") from error
    _check_complete(path, header, size - begin)
    return entries


def _entry(path: Path, data: int, name: str, described: Mapping[str, Any]) -> _Entry:
    """A tensor as the header describes it; ValueError if its bytes are not those of its shape."""
    shape, dtype = tuple(described["shape"]), described["dtype"]
    begin, end = described["data_offsets"]
    if dtype in DTYPES and end - begin != prod(shape) * DTYPES[dtype].itemsize:
        raise ValueError(f"tensor {name} of shape {list(shape)} has {end - begin} bytes")
    return _Entry(path, shape, dtype, data + begin)


def _check_complete(path: Path, header: Mapping[str, Any], data_bytes: int) -> None:
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        end = entry["data_offsets"][1]
        if end > data_bytes:
            raise EngineStartError(
                f"{path}: is truncated: tensor {name} ends at byte {end} of {data_bytes}"
            )


def tensor_specs(config: ModelConfig) -> dict[str, TensorSpec]:
    """Every tensor of a published checkpoint of this shape, by its published name."""
    specs = {
        EMBEDDING: TensorSpec((config.vocab_size, config.hidden_size)),
        NORM: TensorSpec((config.hidden_size,)),
    }
    if not config.tie_word_embeddings:
        specs[HEAD] = TensorSpec((config.vocab_size, config.hidden_size))
    layer = _layer_specs(config)
    for index in range(config.num_hidden_layers):
        specs |= {f"model.layers.{index}.{name}": spec for name, spec in layer.items()}
    return specs


def layer_of(name: str) -> int | None:
    _, is_layers, rest = name.partition("model.layers.")
    return int(rest.partition(".")[0]) if is_layers else None


def output_head(config: ModelConfig) -> str:
    """The tensor whose rows score the tokens."""
    return EMBEDDING if config.tie_word_embeddings else HEAD


def _layer_specs(config: ModelConfig) -> dict[str, TensorSpec]:
    hidden, inner, experts = config.hidden_size, config.intermediate_size, config.num_local_experts
    specs = {
        "input_layernorm.weight": TensorSpec((hidden,)),
        "post_attention_layernorm.weight": TensorSpec((hidden,)),
        "self_attn.sinks": TensorSpec((config.num_attention_heads,)),
        "mlp.router.weight": TensorSpec((experts, hidden)),
        "mlp.router.bias": TensorSpec((experts,)),
        "mlp.experts.gate_up_proj": TensorSpec((experts, hidden, 2 * inner), is_packable=True),
        "mlp.experts.gate_up_proj_bias": TensorSpec((experts, 2 * inner)),
        "mlp.experts.down_proj": TensorSpec((experts, inner, hidden), is_packable=True),
        "mlp.experts.down_proj_bias": TensorSpec((experts, hidden)),
    }
    for name, (num_out, num_in) in _projections(config).items():
        specs[f"self_attn.{name}.weight"] = TensorSpec((num_out, num_in))
        if config.attention_bias:
            specs[f"self_attn.{name}.bias"] = TensorSpec((num_out,))
    return specs


def _projections(config: ModelConfig) -> dict[str, tuple[int, int]]:
    return {
        "q_proj": (config.q_size, config.hidden_size),
        "k_proj": (config.kv_size, config.hidden_size),
        "v_proj": (config.kv_size, config.hidden_size),
        "o_proj": (config.hidden_size, config.q_size),
    }
