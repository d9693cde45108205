"""From scheduled chunks to logits: the loaded model, its KV cache and one step."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import replace
from math import prod

import torch

from engines.errors import EngineStartError
from engines.native.batch import BatchBuilder, Piece
from engines.native.config import ModelConfig, NativeConfig
from engines.native.kv_cache import KVCache, choose_num_blocks, longest_sequence
from engines.native.logits import Logits
from engines.native.memory import available_bytes
from engines.native.model import GptOss, Loader, tensor_specs
from engines.native.threads import ThreadChooser
from engines.native.weights import Checkpoint

_GATHERED_BYTES = 7 << 20  # on CPU: K/V that is gathered should be in a cache when it is read


class ModelRunner:
    """Holds everything that lives in tensors; the scheduler above it sees integers only.

    `config` is the configuration asked for with every automatic choice filled in.
    """

    def __init__(
        self, config: NativeConfig, model: ModelConfig, device: torch.device | None = None
    ) -> None:
        """Load the weights and allocate the cache; EngineStartError if either cannot be."""
        threads = ThreadChooser(config.num_threads or torch.get_num_threads())
        device = device or torch.device("cpu")
        dtype: torch.dtype = getattr(torch, config.dtype)
        checkpoint = Checkpoint(config.model_dir, tensor_specs(model))
        _check_length(config, model)
        if device.type == "cpu":
            _check_memory(config, model, dtype)
        self._model = GptOss(model, Loader(checkpoint, dtype, device), threads)
        self.num_blocks = choose_num_blocks(model, config)
        self.block_size = config.block_size
        self.max_model_len = longest_sequence(model, config, self.num_blocks)
        self.config = replace(
            config, num_kv_blocks=self.num_blocks, max_model_len=self.max_model_len
        )
        self._cache = KVCache(model, config, self.num_blocks, device)
        self._batches = BatchBuilder(
            config.block_size,
            model.sliding_window,
            dtype,
            device,
            _group_tokens(model, dtype, device),
        )

    def execute(self, chunks: SequenceOf[Piece]) -> Logits:
        """Compute all chunks in one pass, writing their K/V.

        Returns a row of logits for each chunk that is a last one, in the chunks' order.
        """
        return self._model.forward(self._batches.build(chunks), self._cache)


def _group_tokens(model: ModelConfig, dtype: torch.dtype, device: torch.device) -> int | None:
    """What the decodes of one attention group may attend to; None without a limit."""
    if device.type != "cpu":
        return None
    return _GATHERED_BYTES // (2 * model.kv_size * dtype.itemsize)


def _check_length(config: NativeConfig, model: ModelConfig) -> None:
    if config.max_model_len and config.max_model_len > model.max_position_embeddings:
        raise EngineStartError(
            f"max_model_len is {config.max_model_len}, above the model's"
            f" max_position_embeddings of {model.max_position_embeddings}; lower it"
        )


def _check_memory(config: NativeConfig, model: ModelConfig, dtype: torch.dtype) -> None:
    """Refuse a model that cannot fit rather than be killed while loading it.

    MXFP4 experts are unpacked to `dtype` on CPU. The embedding stays in its file.
    """
    specs = tensor_specs(model)
    needed = sum(prod(spec.shape) for spec in specs.values()) * dtype.itemsize
    needed -= model.vocab_size * model.hidden_size * dtype.itemsize
    available = available_bytes()
    if available is not None and needed > available:
        raise EngineStartError(
            f"{config.model_dir}: the weights need {needed} bytes as {config.dtype}, and"
            f" {available} bytes of memory are free; use a smaller model or dtype bfloat16"
        )
