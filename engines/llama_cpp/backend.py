"""llama.cpp as a backend of the native engine's step loop: it computes, the rest is ours.

So the scheduler, prefix caching, sampling and grammars are those of every other backend
(docs/decisions/0020-llama-cpp-is-a-backend.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from engines.adding import command_for
from engines.errors import EngineStartError
from engines.llama_cpp.cells import Cells
from engines.llama_cpp.config import LlamaCppConfig
from engines.llama_cpp.library import MAX_OUTPUTS, BatchRun, Context, GgufModel, Room, has_gpu
from engines.llama_cpp.room import capacity_of
from engines.native.backends.base import Batch, Capacity
from engines.native.backends.scoring import joined, score
from engines.native.backends.torch_errors import TorchErrors
from engines.native.host.sampler import HostStep
from engines.native.host.slots import Logits, Slots, Span
from engines.native.loop.block_manager import BlockManager
from engines.native.loop.core import EngineCore
from engines.native.loop.limits import SchedulerLimits
from engines.native.loop.scheduler import Scheduler
from engines.native.options import seconds_of
from engines.prompt_logprobs import PromptLogprobs

_ALL_LAYERS = -1


class LlamaCppBackend:
    """Slots and a context of llama.cpp; implements engines.native.backends.base.Backend."""

    def __init__(
        self,
        config: LlamaCppConfig,
        model: GgufModel,
        capacity: Capacity,
        num_threads: int,
        on_lost: Callable[[Iterable[int]], None],
    ) -> None:
        """`on_lost` gets the unused blocks whose content is gone."""
        is_caching = config.enable_prefix_caching
        self._capacity = capacity
        self._context = Context(
            model,
            Room(
                num_cells=(capacity.num_blocks - 1) * config.block_size,
                num_sequences=config.num_holders * (2 if is_caching else 1),
                num_batched_tokens=config.max_num_batched_tokens,
                num_threads=num_threads,
                kv_dtype=config.kv_dtype,
                is_window_kept=is_caching,
                is_on_gpu=config.num_devices > 0,
            ),
        )
        self._cells = Cells(
            self._context,
            config.block_size,
            config.max_num_seqs,
            config.num_holders,
            is_prefix_caching=is_caching,
            on_lost=on_lost,
        )
        self._slots = Slots()

    @property
    def access(self) -> None:
        """None: K/V lie where the library keeps them."""
        return None

    @property
    def capacity(self) -> Capacity:
        return self._capacity

    def launch(self, batch: Batch) -> HostStep:
        """Compute a step, whose tokens are sampled when it is collected."""
        self._cells.apply(batch)
        spans = dict(enumerate(self._slots.apply(batch)))
        sampled = {i: span for i, span in spans.items() if span.is_last}
        scored = {i: span for i, span in spans.items() if span.prompt_logprobs is not None}
        others = {i: span for i, span in spans.items() if i not in scored}
        last_rows, scores = self._compute(batch, others), {}
        for i, span in scored.items():
            last_rows[i], scores[i] = self._score(self._cells.sequence(batch.rows[i].slot), span)
        for row in batch.rows:
            self._cells.computed(row.slot, row.end)
        logits = torch.cat([last_rows[i] for i in sampled]) if sampled else torch.empty(0, 0)
        step = HostStep(Logits(logits), sampled, scores)
        if not any(row.is_masked for row in batch.rows):
            step.mask({})
        return step

    def close(self) -> None:
        """All is this process's own."""

    def _compute(self, batch: Batch, spans: dict[int, Span]) -> dict[int, Tensor]:
        """Compute rows of the batch at once; the logits (1, vocab_size) of those that are last."""
        if not spans:
            return {}
        rows = [
            BatchRun(
                self._cells.sequence(batch.rows[i].slot), span.start, span.token_ids, span.is_last
            )
            for i, span in spans.items()
        ]
        logits = torch.from_numpy(self._context.decode(rows)).clone()
        return dict(
            zip((i for i, span in spans.items() if span.is_last), logits.split(1), strict=True)
        )

    def _score(self, sequence: int, span: Span) -> tuple[Tensor, PromptLogprobs]:
        """Compute a row whose tokens are scored, a few at a time: each has logits of 0.8 MB.

        Gives the logits (1, vocab_size) of the last one, and the log-probabilities.
        """
        token_ids, known, pieces = span.token_ids, span.scored_token_ids, []
        assert span.prompt_logprobs is not None
        for at in range(0, len(token_ids), MAX_OUTPUTS):
            piece = token_ids[at : at + MAX_OUTPUTS]
            run = BatchRun(sequence, span.start + at, piece, len(piece))
            logits = torch.from_numpy(self._context.decode([run]))
            if following := known[at : at + MAX_OUTPUTS]:
                told = torch.tensor(following)
                pieces.append(score(logits[: len(told)], told, span.prompt_logprobs))
        return logits[-1:].clone(), joined(pieces).packed()


def load_core(config: LlamaCppConfig) -> EngineCore:
    """Load the GGUF file; raises EngineStartError naming what is wrong with it."""
    if config.num_devices and not has_gpu():
        raise EngineStartError(
            "this llama-cpp-python is built for the CPU; for the build with CUDA "
            + command_for("llama-cpp")
        )
    model = GgufModel(config.model_path, _num_gpu_layers(config))
    if config.precision not in (None, model.precision):
        raise EngineStartError(
            f"precision is {config.precision!r}; {model.path} has {model.precision!r}"
        )
    if not config.block_size < model.sliding_window:
        raise EngineStartError(
            f"block_size is {config.block_size}; use less than the model's sliding window of "
            f"{model.sliding_window} tokens"
        )
    capacity = capacity_of(config, model)
    blocks = BlockManager(
        capacity.num_blocks,
        config.block_size,
        sliding_window=None,  # a block holds K/V of all layers
        is_prefix_caching=config.enable_prefix_caching,
    )
    num_threads = config.num_threads or torch.get_num_threads()
    backend = LlamaCppBackend(config, model, capacity, num_threads, blocks.forget)
    torch.set_num_threads(1)  # of this thread, which samples: more would spin beside llama.cpp's
    limits = SchedulerLimits(
        capacity.max_model_len,
        config.max_num_seqs,
        config.max_num_batched_tokens,
        max_token_gap_s=seconds_of(config.max_token_gap_ms),
    )
    return EngineCore(backend, Scheduler(blocks, limits), model.vocab_size, errors=TorchErrors())


def _num_gpu_layers(config: LlamaCppConfig) -> int:
    if not config.num_devices:
        return 0
    return _ALL_LAYERS if config.gpu_layers is None else config.gpu_layers
