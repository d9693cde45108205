"""How much K/V there is room for beside the weights."""

from __future__ import annotations

from engines.errors import EngineStartError
from engines.llama_cpp.config import KV_BYTES, LlamaCppConfig
from engines.llama_cpp.library import GgufModel, free_gpu_bytes
from engines.native.backends.base import Capacity
from engines.native.host.memory import available_bytes

_USUAL_TOKENS = 4096  # length of a sequence that a pool of automatic size has in mind
_BUFFER_BYTES = 512 << 20  # of a step: logits, activations, scratch space


def capacity_of(config: LlamaCppConfig, model: GgufModel) -> Capacity:
    """Size the pool: room for max_num_seqs usual sequences, within the memory if it is known.

    Raises EngineStartError when not even one sequence of max_model_len fits, or the weights do not.
    """
    longest = config.max_model_len or model.max_position_embeddings
    if longest > model.max_position_embeddings:
        raise EngineStartError(
            f"max_model_len is {longest}, above the model's context length of "
            f"{model.max_position_embeddings}; lower it"
        )
    size = config.block_size
    room = _num_affordable_tokens(config, model)
    if config.num_kv_blocks is not None:
        num_tokens = config.num_kv_blocks * size
    else:
        num_tokens = max(config.max_num_seqs * min(longest, _USUAL_TOKENS), longest)
        num_tokens = num_tokens if room is None else min(num_tokens, room)
    num_blocks = -(-num_tokens // size)
    least = config.max_model_len or 2 * size
    if (room is not None and num_blocks * size > room + size) or num_blocks * size < least:
        raise EngineStartError(
            f"the KV cache needs {token_bytes(config, model)} bytes a token and there is memory "
            f"for {room} tokens; num_kv_blocks is {num_blocks} of {size} tokens, and a sequence "
            f"needs {least}: lower max_model_len or num_kv_blocks, or give the engine more memory"
        )
    return Capacity(num_blocks + 1, size, min(longest, num_blocks * size))


def token_bytes(config: LlamaCppConfig, model: GgufModel) -> int:
    """Return the bytes of one token in the pool: without caching, of every second layer only."""
    num_layers = model.num_layers
    if not config.enable_prefix_caching:
        num_layers -= model.num_layers // 2
    return int(num_layers * model.kv_values * KV_BYTES[config.kv_dtype])


def _num_affordable_tokens(config: LlamaCppConfig, model: GgufModel) -> int | None:
    """What the memory that is free beside the weights has room for; None where it is unknown."""
    if config.num_devices:
        free = free_gpu_bytes()  # the weights are there by now
    else:
        free = available_bytes()
        if free is not None:
            free -= model.num_bytes  # mapped, and read as they are needed
    if free is None:
        return None
    free -= _BUFFER_BYTES
    if free <= 0:
        raise EngineStartError(
            f"{model.path}: the weights of {model.num_bytes} bytes and a step's buffers need "
            f"{-free} bytes more than are free; use a smaller model or a machine with more memory"
        )
    return int(free * config.memory_fraction) // token_bytes(config, model)
