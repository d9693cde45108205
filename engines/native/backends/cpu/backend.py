"""The CPU backend: a step is computed while it is launched, in plain torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engines.errors import EngineStartError
from engines.native.backends.base import Batch, Capacity, HostCapacity, Move, RankLost
from engines.native.backends.block_tensors import BlockTensors
from engines.native.backends.cpu.adapters import CpuAdapters
from engines.native.backends.cpu.attention import KVCache, LayoutBuilder
from engines.native.backends.cpu.exchange import Alone, RankExchange
from engines.native.backends.cpu.host_blocks import CpuHostBlocks
from engines.native.backends.cpu.memory import check_host_kv, check_memory, kv_budget
from engines.native.backends.cpu.model import GptOss, Loader, ThreadChooser
from engines.native.backends.cpu.ranks.adapters import RankAdapters
from engines.native.backends.cpu.ranks.plan import Planner
from engines.native.backends.cpu.ranks.team import Team
from engines.native.backends.scoring import MAX_ROWS, joined, score
from engines.native.config import ModelConfig, NativeConfig
from engines.native.host.sampler import HostStep
from engines.native.host.slots import Logits, Slots, Span
from engines.native.kv_pool import choose_num_blocks, longest_sequence, num_host_blocks
from engines.native.tensor_parallel.shard import part_of, shard_of
from engines.native.tensor_parallel.weights import PartTensors
from engines.prompt_logprobs import PromptLogprobs

ALONE: Final = Alone()
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
        team: Team | None = None,
    ) -> None:
        """`move` carries out copies between the blocks and host memory, where there is any.

        team: the ranks that compute each step together with this one.
        """
        self.access = access
        self._capacity, self._forward = capacity, forward
        self._score, self._move = score, move
        self._slots = Slots()
        self._team, self._planner = team, Planner()

    @classmethod
    def load(cls, config: NativeConfig, model: ModelConfig) -> CpuBackend:
        """Load the weights and allocate the cache; EngineStartError if either cannot be."""
        if config.tensor_parallel == 1:
            network = TorchModel(config, model)
            access = BlockTensors(network.block_tensors, network.move)
            return cls(network.capacity, network.forward, network.score, network.move, access)
        shard_of(model, config, 0)  # refuses a split that cannot be, before processes start
        team = Team(config)
        try:
            network = TorchModel(team.config, model, team.exchange)
            team.exchange.agree(lambda: 0)  # all have their blocks
        except BaseException as error:
            team.close()
            if isinstance(error, RankLost):
                raise EngineStartError(str(error)) from error
            raise
        adapters = RankAdapters(network.adapters, team.exchange)
        capacity = replace(network.capacity, adapters=adapters)
        # Blocks of one rank are no whole blocks: there is no access.
        return cls(capacity, network.forward, network.score, network.move, None, team)

    def close(self) -> None:
        """End the other ranks."""
        if self._team is not None:
            self._team.close()

    @property
    def capacity(self) -> Capacity:
        return self._capacity

    def launch(self, batch: Batch) -> HostStep:
        """Compute the step now; its sampling too, unless a row waits for its mask."""
        spans = self._slots.apply(batch)
        if self._team is None:
            logits, scores = self._compute(batch, spans)
        else:
            logits, scores = self._compute_together(self._team, batch, spans)
        sampled = {i: span for i, span in enumerate(spans) if span.is_last}
        step = HostStep(logits, sampled, scores)
        if not any(row.is_masked for row in batch.rows):
            step.mask({})
        return step

    def _compute_together(
        self, team: Team, batch: Batch, spans: list[Span]
    ) -> tuple[Logits, dict[int, PromptLogprobs]]:
        """Compute with the other ranks; raises RankLost for whatever keeps them out of step."""
        try:
            team.exchange.tell(self._planner.plan(batch, spans))
            return self._compute(batch, spans)
        except RankLost:
            raise
        except Exception as error:
            raise RankLost(
                f"rank 0 failed in a step, and the others wait for it: {type(error).__name__}:"
                f" {error}"
            ) from error

    def _compute(self, batch: Batch, spans: list[Span]) -> tuple[Logits, dict[int, PromptLogprobs]]:
        if self._move is not None:
            self._move(batch.moves)
        logits = self._forward(spans)
        scored = [i for i, span in enumerate(spans) if span.prompt_logprobs is not None]
        if not scored or self._score is None:
            return logits, {}
        return logits, dict(zip(scored, self._score(spans), strict=True))


class TorchModel:
    """The loaded model and its KV cache, or one rank's part of both."""

    def __init__(
        self, config: NativeConfig, model: ModelConfig, exchange: RankExchange = ALONE
    ) -> None:
        device = torch.device("cpu")
        threads = ThreadChooser(config.num_threads or torch.get_num_threads())
        dtype: torch.dtype = getattr(torch, config.dtype)
        shard = shard_of(model, config, exchange.rank)
        part = part_of(model, shard)
        checkpoint = PartTensors(config, model, shard)
        _check_length(config, model)
        if shard.is_first:  # all ranks' memory is the machine's
            check_memory(config, model, dtype)
        self._exchange = exchange
        self._model = GptOss(part, Loader(checkpoint, dtype, device), threads, exchange)
        num_blocks = exchange.agree(lambda: _num_blocks(config, model))
        self._cache = KVCache(part, config, num_blocks, device)
        self._host: CpuHostBlocks | None = None
        self.block_tensors = (self._cache.blocks,)
        if num_places := num_host_blocks([model], config):
            self._host = CpuHostBlocks(self.block_tensors, num_places)
        self.adapters = CpuAdapters(model, shard, dtype)
        self.capacity = Capacity(
            num_blocks,
            config.block_size,
            longest_sequence(model, config, num_blocks),
            MAX_DRAFTS,
            step_cost,
            host=self._host_capacity(),
            adapters=self.adapters,
        )
        self._scored: tuple[Tensor, tuple[int, ...]] | None = None  # last states, and spans' ends
        self._layouts = LayoutBuilder(
            config.block_size,
            model.sliding_window,
            dtype,
            device,
            _GATHERED_BYTES // (2 * part.kv_size * dtype.itemsize),
        )

    def _host_capacity(self) -> HostCapacity | None:
        if self._host is None:
            return None
        own = self._host.capacity()
        return replace(own, block_bytes=own.block_bytes * self._exchange.size)

    def move(self, moves: tuple[Move, ...]) -> None:
        """Copy blocks to host memory, or back."""
        if self._host is not None:
            self._host.move(moves)

    def forward(self, spans: list[Span]) -> Logits:
        """Compute all spans in one pass, writing their K/V.

        Returns a row of logits for each position that wants some, in the spans' order.
        """
        layout = self._layouts.build(spans)
        states = self._model.states(layout, self._cache, self.adapters.rows_of(layout.adapted))
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
            pieces = []
            for at in range(0, len(token_ids), MAX_ROWS):
                piece = token_ids[at : at + MAX_ROWS]
                logits = self._model.logits(states[first + at : first + at + len(piece)])
                if self._exchange.rank == 0:  # it alone has all columns
                    pieces.append(score(logits.spread(), piece, span.prompt_logprobs))
            if self._exchange.rank == 0:
                scores.append(joined(pieces).packed())
        return scores


def _num_blocks(config: NativeConfig, model: ModelConfig) -> int:
    """Blocks of the whole model, once the weights of all ranks are loaded."""
    check_host_kv(config)
    return choose_num_blocks(model, config, kv_budget(config.memory_fraction, config.host_kv_bytes))


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
