"""The CPU backend: a step is computed while it is launched, in plain torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engines.errors import EngineStartError
from engines.native.backends.base import Batch, Capacity, Move
from engines.native.backends.block_tensors import BlockTensors
from engines.native.backends.cpu.attention import KVCache, LayoutBuilder
from engines.native.backends.cpu.host_blocks import CpuHostBlocks
from engines.native.backends.cpu.memory import check_host_kv, check_memory, kv_budget
from engines.native.backends.cpu.model import GptOss, Loader, ThreadChooser
from engines.native.backends.scoring import MAX_ROWS, joined, score
from engines.native.config import ModelConfig, NativeConfig
from engines.native.host.sampler import HostStep
from engines.native.host.slots import Logits, Slots, Span
from engines.native.kv_pool import choose_num_blocks, longest_sequence, num_host_blocks
from engines.native.weights import CheckpointTensors, tensor_specs
from engines.prompt_logprobs import PromptLogprobs

MAX_DRAFTS = 8  # in a row; their draws follow one another
_GATHERED_BYTES = 7 << 20  # K/V that is gathered should be in a cache when it is read

Forward = Callable[[list[Span]], Logits]  # num_sampled rows of logits for each span
Score = Callable[[Sequence[Span]], list[PromptLogprobs]]
"""The log-probabilities that spans of the last forward pass want, of those that want some."""


class CpuBackend:
    """Slots, a forward pass and the sampler; implements engines.native.backends.base.Backend."""

    def __init__(
        self,
        capacity: Capacity,
        forward: Forward,
        score: Score | None = None,
        move: Callable[[tuple[Move, ...]], None] | None = None,
        access: BlockTensors | None = None,
    ) -> None:
        """`move` carries out copies between the blocks and host memory, where there is any."""
        self.access = access
        self._capacity, self._forward = capacity, forward
        self._score, self._move = score, move
        self._slots = Slots()

    @classmethod
    def load(cls, config: NativeConfig, model: ModelConfig) -> CpuBackend:
        """Load the weights and allocate the cache; EngineStartError if either cannot be."""
        network = TorchModel(config, model)
        move = None if network.host is None else network.host.move
        access = BlockTensors(network.block_tensors, move)
        return cls(network.capacity, network.forward, network.score, move, access)

    @property
    def capacity(self) -> Capacity:
        return self._capacity

    def launch(self, batch: Batch) -> HostStep:
        """Compute the step now; its sampling too, unless a row waits for its mask."""
        if self._move is not None:
            self._move(batch.moves)
        spans = self._slots.apply(batch)
        sampled = {i: span for i, span in enumerate(spans) if span.is_last}
        logits = self._forward(spans)
        scored = [i for i, span in enumerate(spans) if span.prompt_logprobs is not None]
        scores: dict[int, PromptLogprobs] = {}
        if scored and self._score is not None:
            scores = dict(zip(scored, self._score(spans), strict=True))
        step = HostStep(logits, sampled, scores)
        if not any(row.is_masked for row in batch.rows):
            step.mask({})
        return step


class TorchModel:
    """The loaded model and its KV cache."""

    def __init__(self, config: NativeConfig, model: ModelConfig) -> None:
        device = torch.device("cpu")
        threads = ThreadChooser(config.num_threads or torch.get_num_threads())
        dtype: torch.dtype = getattr(torch, config.dtype)
        checkpoint = CheckpointTensors(config.model_dir, tensor_specs(model), config.quantize)
        _check_length(config, model)
        check_memory(config, model, dtype)
        self._model = GptOss(model, Loader(checkpoint, dtype, device), threads)
        check_host_kv(config)
        budget = kv_budget(config.memory_fraction, config.host_kv_bytes)
        num_blocks = choose_num_blocks(model, config, budget)
        self._cache = KVCache(model, config, num_blocks, device)
        self.host: CpuHostBlocks | None = None
        self.block_tensors = (self._cache.blocks,)
        if num_places := num_host_blocks([model], config):
            self.host = CpuHostBlocks(self.block_tensors, num_places)
        self.capacity = Capacity(
            num_blocks,
            config.block_size,
            longest_sequence(model, config, num_blocks),
            MAX_DRAFTS,
            step_cost,
            host=None if self.host is None else self.host.capacity(),
        )
        self._scored: tuple[Tensor, tuple[int, ...]] | None = None  # last states, and spans' ends
        self._layouts = LayoutBuilder(
            config.block_size,
            model.sliding_window,
            dtype,
            device,
            _GATHERED_BYTES // (2 * model.kv_size * dtype.itemsize),
        )

    def forward(self, spans: list[Span]) -> Logits:
        """Compute all spans in one pass, writing their K/V.

        Returns a row of logits for each position that wants some, in the spans' order.
        """
        layout = self._layouts.build(spans)
        states = self._model.states(layout, self._cache)
        is_scored = any(span.prompt_logprobs is not None for span in spans)
        self._scored = (states, layout.ends) if is_scored else None
        return self._model.logits(states.index_select(0, layout.sampled_rows))

    @torch.inference_mode()
    def score(self, spans: Sequence[Span]) -> list[PromptLogprobs]:
        """The log-probabilities that spans of the last pass want, a few rows of logits at once."""
        assert self._scored is not None
        (states, ends), self._scored = self._scored, None
        scores = []
        for span, end in zip(spans, ends, strict=True):
            if span.prompt_logprobs is None:
                continue
            token_ids, first = torch.tensor(span.scored_token_ids), end - span.num_tokens
            pieces = [
                score(
                    self._model.logits(states[first + at : first + at + len(piece)]).spread(),
                    piece,
                    span.prompt_logprobs,
                )
                for at, piece in zip(
                    range(0, len(token_ids), MAX_ROWS), token_ids.split(MAX_ROWS), strict=True
                )
            ]
            scores.append(joined(pieces).packed())
        return scores


def step_cost(num_sequences: int, num_drafts: NDArray[np.float64]) -> NDArray[np.float64]:
    """As with nano on one core: 1 to 32 sequences, 0 to 7 drafts each, and rather more.

    Attention of a sequence with drafts is computed separately.
    """
    return 6.0 + num_sequences + 0.8 * num_drafts


def _check_length(config: NativeConfig, model: ModelConfig) -> None:
    if config.max_model_len and config.max_model_len > model.max_position_embeddings:
        raise EngineStartError(
            f"max_model_len is {config.max_model_len}, above the model's"
            f" max_position_embeddings of {model.max_position_embeddings}; lower it"
        )
