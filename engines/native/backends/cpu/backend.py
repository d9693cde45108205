"""The CPU backend: a step is computed while it is launched, in plain torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engines.base import PromptLogprobs
from engines.errors import EngineStartError
from engines.native.backends.base import Batch, Capacity, Sampled, TokenMasks
from engines.native.backends.cpu.attention import KVCache
from engines.native.backends.cpu.eagle import HeadGuesser
from engines.native.backends.cpu.layers import Logits
from engines.native.backends.cpu.layout import LayoutBuilder, Slots, Span
from engines.native.backends.cpu.linear import computed_dtype
from engines.native.backends.cpu.memory import check_memory, kv_budget
from engines.native.backends.cpu.model import GptOss, Loader, Taps, ThreadChooser
from engines.native.backends.cpu.sampler import sample, verify
from engines.native.backends.scoring import MAX_ROWS, joined, score
from engines.native.config import ModelConfig, NativeConfig
from engines.native.eagle.checkpoint import load_eagle
from engines.native.eagle.config import EagleConfig
from engines.native.eagle.head import EagleHead
from engines.native.kv_pool import choose_num_blocks, longest_sequence
from engines.native.weights import Checkpoint, output_head, tensor_specs

MAX_DRAFTS = 8  # in a row; their draws follow one another
_GATHERED_BYTES = 7 << 20  # K/V that is gathered should be in a cache when it is read

Forward = Callable[[list[Span]], Logits]  # num_sampled rows of logits for each span
Score = Callable[[Sequence[Span]], list[PromptLogprobs]]
"""The log-probabilities that spans of the last forward pass want, of those that want some."""

Propose = Callable[[Sequence[Span], Sequence[Sampled]], list[tuple[int, ...]]]
"""Guesses of what follows the sampled tokens, as many as each span wants."""


class CpuBackend:
    """Slots, a forward pass and the sampler; implements engines.native.backends.base.Backend."""

    def __init__(
        self,
        capacity: Capacity,
        forward: Forward,
        propose: Propose | None = None,
        score: Score | None = None,
    ) -> None:
        self._capacity, self._forward, self._propose = capacity, forward, propose
        self._score = score
        self._slots = Slots()

    @classmethod
    def load(cls, config: NativeConfig, model: ModelConfig) -> CpuBackend:
        """Load the weights and allocate the cache; EngineStartError if either cannot be."""
        network = TorchModel(config, model)
        propose = None if network.guesser is None else network.guesser.propose
        return cls(network.capacity, network.forward, propose, network.score)

    @property
    def capacity(self) -> Capacity:
        """What the loaded model has room for."""
        return self._capacity

    def launch(self, batch: Batch) -> CpuStep:
        """Compute the step now; its sampling too, unless a row waits for its mask."""
        spans = self._slots.apply(batch)
        sampled = {i: span for i, span in enumerate(spans) if span.is_last}
        logits = self._forward(spans)
        scored = [i for i, span in enumerate(spans) if span.prompt_logprobs is not None]
        scores: dict[int, PromptLogprobs] = {}
        if scored and self._score is not None:
            scores = dict(zip(scored, self._score(spans), strict=True))
        step = CpuStep(logits, sampled, self._propose, scores)
        if not any(row.is_masked for row in batch.rows):
            step.mask({})
        return step


class CpuStep:
    """A computed step: logits, and tokens once it has its masks."""

    def __init__(
        self,
        logits: Logits,
        spans: dict[int, Span],
        propose: Propose | None = None,
        scores: Mapping[int, PromptLogprobs] | None = None,
    ) -> None:
        """`spans` that are last, and `scores` of prompts, by their row in the batch."""
        self._logits: Logits | None = logits
        self._spans, self._propose = spans, propose
        self._scores = scores or {}
        self._sampled: list[Sampled] = []

    def mask(self, masks: Mapping[int, TokenMasks]) -> None:
        """Sample with these masks, by the row in the batch."""
        assert self._logits is not None
        self._sampled = _sample(self._logits, self._spans, masks)
        self._logits = None
        for span, sampled in zip(self._spans.values(), self._sampled, strict=True):
            span.slot.token_ids += sampled.token_ids
        spans = [*self._spans.values()]
        if self._propose is not None and any(span.num_wanted for span in spans):
            guesses = self._propose(spans, self._sampled)
            self._sampled = [
                each._replace(proposed=of) for each, of in zip(self._sampled, guesses, strict=True)
            ]

    def collect(self) -> list[Sampled]:
        """What each row with is_last or prompt_logprobs has brought."""
        if not self._scores:
            return self._sampled
        sampled = dict(zip(self._spans, self._sampled, strict=True))
        return [
            sampled.get(row, Sampled(()))._replace(prompt_logprobs=self._scores.get(row))
            for row in sorted({*sampled, *self._scores})
        ]


def _sample(
    logits: Logits, spans: dict[int, Span], masks: Mapping[int, TokenMasks]
) -> list[Sampled]:
    if not any(span.drafts for span in spans.values()):
        first_masks = {i: masks[row][0] for i, row in enumerate(spans) if row in masks}
        return sample(logits, [span.slot for span in spans.values()], first_masks)
    sampled, first = [], 0
    for row, span in spans.items():
        end = first + span.num_sampled
        rows = Logits(logits.values[first:end], logits.columns)
        if span.drafts:
            sampled.append(verify(rows, span.slot, span.drafts, masks.get(row)))
        else:
            sampled += sample(rows, [span.slot], {0: masks[row][0]} if row in masks else {})
        first = end
    return sampled


class TorchModel:
    """The loaded model and its KV cache."""

    def __init__(self, config: NativeConfig, model: ModelConfig) -> None:
        device = torch.device("cpu")
        threads = ThreadChooser(config.num_threads or torch.get_num_threads())
        dtype: torch.dtype = getattr(torch, config.dtype)
        computed = computed_dtype(dtype)
        checkpoint = Checkpoint(config.model_dir, tensor_specs(model))
        _check_length(config, model)
        check_memory(config, model, dtype)
        self._model = GptOss(model, Loader(checkpoint, dtype, device), threads)
        head = None if config.draft_dir is None else self._head(config, model, computed, checkpoint)
        num_blocks = choose_num_blocks(
            model,
            config,
            kv_budget(config.memory_fraction),
            bytes_beside=0 if head is None else head.block_bytes(config.block_size),
        )
        self.capacity = Capacity(
            num_blocks,
            config.block_size,
            longest_sequence(model, config, num_blocks),
            MAX_DRAFTS,
            MAX_DRAFTS if head is not None else 0,
            step_cost if head is None else step_cost_with_head,
        )
        self.guesser = None if head is None else HeadGuesser(head, num_blocks, config.block_size)
        self._cache = KVCache(model, config, num_blocks, device)
        self._scored: tuple[Tensor, tuple[int, ...]] | None = None  # last states, and spans' ends
        self._layouts = LayoutBuilder(
            config.block_size,
            model.sliding_window,
            computed,
            device,
            _GATHERED_BYTES // (2 * model.kv_size * computed.itemsize),
        )

    def forward(self, spans: list[Span]) -> Logits:
        """Compute all spans in one pass, writing their K/V.

        Returns a row of logits for each position that wants some, in the spans' order.
        """
        layout = self._layouts.build(spans)
        guessing = () if self.guesser is None else self.guesser.layers
        is_scored = any(span.prompt_logprobs is not None for span in spans)
        last = (self._model.last_layer,) if is_scored else ()
        if not guessing and not last:
            return self._model.forward(layout, self._cache)
        taps = Taps((*guessing, *last))
        logits = self._model.forward(layout, self._cache, taps)
        self._scored = (taps.states[-1], layout.ends) if is_scored else None
        if self.guesser is not None:
            self.guesser.take_in(spans, layout, taps.states[: len(guessing)])
        return logits

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

    def _head(
        self, config: NativeConfig, model: ModelConfig, dtype: torch.dtype, checkpoint: Checkpoint
    ) -> EagleHead:
        assert config.draft_dir is not None
        shape = EagleConfig.from_dir(config.draft_dir, model)
        longest = config.max_model_len or model.max_position_embeddings
        weights = load_eagle(
            config.draft_dir,
            shape,
            dtype,
            torch.device("cpu"),
            target_embedding=self._model.embedding,
            target_head=lambda: checkpoint.stored(output_head(model)),
        )
        return EagleHead(shape, weights, longest)


def step_cost(num_sequences: int, num_drafts: NDArray[np.float64]) -> NDArray[np.float64]:
    """As with nano on one core: 1 to 32 sequences, 0 to 7 guesses each, and rather more.

    A sequence with guesses is attended to by itself.
    """
    return 6.0 + num_sequences + 0.8 * num_drafts


def step_cost_with_head(num_sequences: int, num_drafts: NDArray[np.float64]) -> NDArray[np.float64]:
    """A guess of a head is taken to cost what verifying it costs."""
    return step_cost(num_sequences, 2 * num_drafts)


def _check_length(config: NativeConfig, model: ModelConfig) -> None:
    if config.max_model_len and config.max_model_len > model.max_position_embeddings:
        raise EngineStartError(
            f"max_model_len is {config.max_model_len}, above the model's"
            f" max_position_embeddings of {model.max_position_embeddings}; lower it"
        )
