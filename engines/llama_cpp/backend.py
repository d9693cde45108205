"""llama.cpp as a backend of the native engine's step loop: it computes, the rest is ours.

So the scheduler, prefix caching, sampling and grammars are those of every other backend
(docs/decisions/0020-llama-cpp-is-a-backend.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from engines.adding import command_for
from engines.errors import EngineStartError
from engines.llama_cpp.cells import Cells
from engines.llama_cpp.config import LlamaCppConfig
from engines.llama_cpp.library import Context, GgufModel, Room, TokenRun, has_gpu
from engines.llama_cpp.room import capacity_of
from engines.native.backends.base import Batch, Capacity
from engines.native.backends.cpu.backend import CpuStep
from engines.native.backends.cpu.layers import Logits
from engines.native.backends.cpu.layout import Slots
from engines.native.block_manager import BlockManager
from engines.native.core import EngineCore
from engines.native.options import seconds_of
from engines.native.scheduler import Scheduler, SchedulerLimits

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
        """`on_lost` hears of blocks that nobody used and whose content is gone."""
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
    def capacity(self) -> Capacity:
        """What the context has room for, in blocks of cells."""
        return self._capacity

    def launch(self, batch: Batch) -> CpuStep:
        """Compute a step, whose tokens are sampled when it is collected."""
        self._cells.apply(batch)
        spans = self._slots.apply(batch)
        rows = [
            TokenRun(self._cells.sequence(row.slot), span.start, span.token_ids, span.is_last)
            for row, span in zip(batch.rows, spans, strict=True)
        ]
        logits = torch.from_numpy(self._context.decode(rows)).clone()
        for row in batch.rows:
            self._cells.computed(row.slot, row.end)
        step = CpuStep(Logits(logits), {i: span for i, span in enumerate(spans) if span.is_last})
        if not any(row.is_masked for row in batch.rows):
            step.mask({})
        return step


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
    return EngineCore(backend, Scheduler(blocks, limits), model.vocab_size)


def _num_gpu_layers(config: LlamaCppConfig) -> int:
    if not config.num_devices:
        return 0
    return _ALL_LAYERS if config.gpu_layers is None else config.gpu_layers
