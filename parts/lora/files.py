"""A LoRA adapter in PEFT's format as it lies in its folder, read without its weights."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from engines.base import Adapter
from engines.native.shard_header import read_header

CONFIG: Final = "adapter_config.json"
WEIGHTS: Final = "adapter_model.safetensors"
NAME: Final = re.compile(r"(.+?)((?:\.base_layer)*)\.(lora_[AB]|base_layer)\.weight")
PREFIX: Final = "base_model.model."
EXPERTS: Final = "mlp.experts"
_ATTENTION: Final = re.compile(r"model\.layers\.\d+\.self_attn\.[qkvo]_proj")
_OF_EXPERTS: Final = re.compile(r"model\.layers\.\d+\.mlp\.experts(\.base_layer)?")
_PICKLE: Final = "adapter_model.bin"
_MOST_CONFIG: Final = 1 << 20  # bytes
_MOST_HEADER: Final = 64 << 20
# What changes the arithmetic, or tensors that are no LoRA matrices.
_UNSUPPORTED: Final = (
    *("bias", "lora_bias", "fan_in_fan_out", "use_dora", "use_qalora", "use_bdlora"),
    *("modules_to_save", "trainable_token_indices", "layer_replication"),
    *("alora_invocation_tokens", "arrow_config", "monteclora_config", "kasa_config"),
)


class AdapterError(Exception):
    """An adapter that cannot be used; the text names the file, the fault and the remedy."""


class NoAdapter(AdapterError):
    """There is none in this folder."""


def read_config(folder: Path) -> dict[str, Any]:
    """The configuration of an adapter whose arithmetic is LoRA's; raises AdapterError."""
    path = folder / CONFIG
    try:
        if path.stat().st_size > _MOST_CONFIG:
            raise AdapterError(f"{path}: is larger than {_MOST_CONFIG} bytes")
        config = json.loads(path.read_bytes())
    except OSError as error:
        raise NoAdapter(f"{path}: {error.strerror}; name a folder that PEFT saved") from None
    except (ValueError, RecursionError) as error:
        raise AdapterError(f"{path}: is not valid JSON: {error}") from None
    if not isinstance(config, dict) or (kind := config.get("peft_type")) != "LORA":
        found = repr(kind) if isinstance(config, dict) else "missing"
        raise AdapterError(f"{path}: peft_type is {found}; only LORA is supported")
    for name in _UNSUPPORTED:
        if (value := config.get(name)) and value != "none":
            raise AdapterError(
                f"{path}: {name} is {value!r}, which is not supported; merge it with "
                "PEFT's merge_and_unload"
            )
    return config


def served_adapter(name: str, folder: Path, max_rank: int) -> Adapter:
    """The adapter in a folder, if it can be served; raises AdapterError."""
    config = read_config(folder)
    path = folder / WEIGHTS
    if not path.is_file() and (folder / _PICKLE).exists():
        raise AdapterError(
            f"{folder / _PICKLE}: is a pickle, which can run code when it is read; save the "
            "adapter as safetensors (save_pretrained with safe_serialization=True)"
        )
    for stored, shape in _described(path):
        _check_tensor(path, stored, shape, max_rank)
    text = json.dumps(config, sort_keys=True).encode()
    is_there = path.stat()
    told = (str(folder), is_there.st_ino, is_there.st_size, is_there.st_mtime_ns)
    key = blake2b(repr(told).encode() + text, digest_size=16).hexdigest()
    return Adapter(name, str(folder), key)


def _described(path: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of a file's tensors; raises AdapterError for a file that is not whole."""
    try:
        with path.open("rb") as file:
            if int.from_bytes(file.read(8), "little") > _MOST_HEADER:
                raise AdapterError(f"{path}: is not safetensors: its header is too long")
        _, tensors, begin = read_header(path)
        end = max((int(each["data_offsets"][1]) for each in tensors.values()), default=0)
        found = [(name, tuple(map(int, each["shape"]))) for name, each in tensors.items()]
        size = path.stat().st_size
    except OSError as error:
        raise NoAdapter(f"{path}: {error.strerror}; name a folder that PEFT saved") from None
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise AdapterError(f"{path}: is not safetensors: {error}") from None
    if begin + end > size:
        raise AdapterError(f"{path}: has {size} bytes of {begin + end}; copy it again")
    if not found:
        raise AdapterError(f"{path}: holds no tensors")
    yield from found


def _check_tensor(path: Path, stored: str, shape: tuple[int, ...], max_rank: int) -> None:
    found = NAME.fullmatch(stored.removeprefix(PREFIX))
    if found is None or found[3] == "base_layer" or len(shape) != 2:
        raise AdapterError(f"{path}: {stored} is not a matrix of a LoRA adapter")
    module = found[1]
    is_experts = module.endswith(EXPERTS)
    rank = shape[0] if found[3] == "lora_A" else shape[1]
    if not is_experts and not 0 < rank <= max_rank:
        raise AdapterError(
            f"{path}: {stored} has rank {rank}; at most {max_rank} is allowed: raise "
            "NIM_MAX_LORA_RANK, or merge the adapter (`harmonium merge`)"
        )


def check_native(folder: Path, *, has_experts: bool) -> None:
    """Raise AdapterError for an adapter of more than attention and, if `has_experts`, experts."""
    path = folder / WEIGHTS
    for stored, _ in _described(path):
        module = stored.removeprefix(PREFIX).partition(".lora_")[0]
        if not (_ATTENTION.fullmatch(module) or (has_experts and _OF_EXPERTS.fullmatch(module))):
            also = "and experts " if has_experts else ""
            raise AdapterError(
                f"{path}: {module} is no projection of attention; here the native engine changes"
                f" q_proj, k_proj, v_proj, o_proj {also}only: merge the adapter"
                " (`harmonium merge`), or choose a profile of vLLM"
            )


def alpha_of(module: str, config: Mapping[str, Any]) -> float:
    """The numerator of the scale of a module's change; raises AdapterError."""
    try:
        for pattern, alpha in (config.get("alpha_pattern") or {}).items():
            if re.fullmatch(rf"(.*\.)?({pattern})", module):
                return float(alpha)
        return float(config["lora_alpha"])
    except (KeyError, TypeError, ValueError, AttributeError, re.error) as error:
        raise AdapterError(
            f"{CONFIG}: lora_alpha or alpha_pattern is no number for {module} ({error!r}); take"
            " the file that PEFT saved"
        ) from None
