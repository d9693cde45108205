"""What the kernels compute."""

from __future__ import annotations

from typing import Final

import torch

from engines.errors import EngineStartError
from engines.native.backends.cuda.choices.of_card import MAX_ROWS
from engines.native.config import ModelConfig, NativeConfig
from engines.native.tensor_parallel.shard import shard_of

_MULTIPLES: Final = {
    "hidden_size": 32, "intermediate_size": 32, "head_dim": 32, "num_local_experts": 4
}  # fmt: skip


def check_computable(config: NativeConfig, model: ModelConfig) -> None:
    """Refuse what the kernels do not compute."""
    if not torch.cuda.is_available():
        raise EngineStartError("device is 'cuda' and no CUDA device is there; use device cpu")
    major, minor = torch.cuda.get_device_capability()
    if major < 8:
        raise EngineStartError(
            f"device is 'cuda' and its compute capability is {major}.{minor}; the kernels need 8.0"
        )
    if config.kv_dtype == "fp8" and (major, minor) < (8, 9):
        raise EngineStartError(
            f"kv_dtype is 'fp8' and the GPU's compute capability is {major}.{minor}; that needs 8.9"
        )
    if config.tensor_parallel > 1:
        shard_of(model, config, 0)  # refuses a split that cannot be
    elif config.num_gpus > model.num_hidden_layers:
        raise EngineStartError(
            f"num_gpus is {config.num_gpus}, and the model has {model.num_hidden_layers} layers"
        )
    if config.dtype != "bfloat16":
        raise EngineStartError(f"dtype is {config.dtype!r}; on device cuda use 'bfloat16'")
    if config.max_num_seqs > MAX_ROWS:
        raise EngineStartError(
            f"max_num_seqs is {config.max_num_seqs}; on device cuda at most {MAX_ROWS}"
        )
    longest = model.max_position_embeddings
    if config.max_model_len and config.max_model_len > longest:
        raise EngineStartError(
            f"max_model_len is {config.max_model_len}, above the model's"
            f" max_position_embeddings of {longest}; lower it"
        )
    if not model.attention_bias:
        raise EngineStartError("attention_bias is false; on device cuda it must be true")
    for name, multiple in _MULTIPLES.items():
        if getattr(model, name) % multiple:
            raise EngineStartError(
                f"{name} is {getattr(model, name)}; on device cuda it must be a multiple of "
                f"{multiple}"
            )
