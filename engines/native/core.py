"""The synchronous heart of the engine: one step after another, in one thread."""

from __future__ import annotations

from collections.abc import Sequence as Sequence_
from dataclasses import dataclass
from typing import Final, Protocol

from engines.base import EngineStats, TokenEvent
from engines.native.block_manager import BlockManager
from engines.native.config import ModelConfig, NativeConfig
from engines.native.grammar import GrammarDeadEnd
from engines.native.logits import Logits
from engines.native.out_of_memory import is_out_of_memory
from engines.native.runner import ModelRunner
from engines.native.sampler import SampledToken, sample
from engines.native.scheduler import Chunk, Limits, Scheduler
from engines.native.sequence import Sequence

NUM_TOKENS_ALWAYS_POSSIBLE: Final = 32  # an engine without the memory for so few is broken


class Runner(Protocol):
    """What the engine needs of a model: logits of the next token for chunks that are last."""

    @property
    def num_blocks(self) -> int: ...

    @property
    def block_size(self) -> int: ...

    @property
    def max_model_len(self) -> int: ...

    def execute(self, chunks: Sequence_[Chunk], /) -> Logits: ...


class StepFailed(Exception):
    """Computing a step failed (see __cause__); the scheduler is as it was before it.

    `sequences` are to end with it. `is_theirs`: without them the step would have gone well.
    """

    def __init__(self, sequences: list[Sequence], *, is_theirs: bool = False) -> None:
        super().__init__(f"computing a step failed with {len(sequences)} sequences")
        self.sequences = sequences
        self.is_theirs = is_theirs


@dataclass(frozen=True, slots=True)
class EngineCore:
    """A runner and the scheduler of its blocks."""

    runner: Runner
    scheduler: Scheduler
    vocab_size: int

    def step(self) -> list[tuple[Sequence, TokenEvent]]:
        """Compute one step; raises StepFailed if the model or the sampler fails."""
        chunks = self.scheduler.schedule()
        try:
            tokens = self._compute(chunks)
        finally:
            self.scheduler.counters.num_steps += 1
        return self.scheduler.update(chunks, tokens)

    def _compute(self, chunks: list[Chunk]) -> list[SampledToken]:
        try:
            logits = self.runner.execute(chunks)
            return sample(logits, [chunk.sequence for chunk in chunks if chunk.is_last])
        except GrammarDeadEnd as error:  # the others take their step again
            raise StepFailed(error.sequences, is_theirs=True) from error
        except Exception as error:
            if is_out_of_memory(error):
                raise _too_large(chunks) from error
            raise StepFailed([chunk.sequence for chunk in chunks]) from error

    def stats(self) -> EngineStats:
        """Count; may be called from any thread."""
        scheduler, counters = self.scheduler, self.scheduler.counters
        return EngineStats(
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            num_kv_blocks=scheduler.blocks.num_usable_blocks,
            num_free_kv_blocks=scheduler.blocks.num_free_blocks,
            num_preemptions=counters.num_preemptions,
            num_steps=counters.num_steps,
            prompt_tokens=counters.prompt_tokens,
            generated_tokens=counters.generated_tokens,
            prefix_cache_queries=counters.prefix_cache_queries,
            prefix_cache_hits=counters.prefix_cache_hits,
            kv_block_size=scheduler.blocks.block_size,
        )


def _too_large(chunks: list[Chunk]) -> StepFailed:
    """End the sequence with the most to compute, of equals the last to come; the rest go on."""
    largest = max(chunks, key=lambda chunk: (chunk.num_tokens, chunk.sequence.rank))
    num_tokens = sum(chunk.num_tokens for chunk in chunks)
    return StepFailed([largest.sequence], is_theirs=num_tokens > NUM_TOKENS_ALWAYS_POSSIBLE)


def load_core(config: NativeConfig) -> EngineCore:
    """Load the checkpoint; raises EngineStartError naming what is wrong with it."""
    model = ModelConfig.from_dir(config.model_dir)
    runner = ModelRunner(config, model)
    return assemble_core(config, runner, model.sliding_window, model.vocab_size)


def assemble_core(
    config: NativeConfig, runner: Runner, sliding_window: int, vocab_size: int
) -> EngineCore:
    """Put a scheduler before a runner."""
    blocks = BlockManager(
        runner.num_blocks,
        runner.block_size,
        sliding_window,
        is_prefix_caching=config.enable_prefix_caching,
    )
    limits = Limits(
        max_model_len=runner.max_model_len,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_num_waiting=config.max_num_waiting,
    )
    return EngineCore(runner, Scheduler(blocks, limits), vocab_size)
