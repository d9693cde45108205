"""The bounds of one engine, what it counts, whether a request fits it, and what of it is cached."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from engines.base import EngineRequest
from engines.errors import PromptTooLong
from engines.native.block_manager import BlockManager
from engines.native.sequence import Sequence
from engines.step_counts import StepCounts


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """The bounds of one engine."""

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_drafts: int = 0  # drafts that one chunk may bring
    max_token_gap_s: float | None = None  # of a step in which sequences decode


@dataclass(slots=True)
class SchedulerCounters(StepCounts):
    """What EngineStats counts and only the scheduler sees."""

    num_preemptions: int = 0
    num_steps: int = 0  # counted by the core, failed ones too
    prompt_tokens: int = 0
    generated_tokens: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0


def check_fits(sequence: Sequence, blocks: BlockManager) -> None:
    """Raise PromptTooLong for a sequence that the blocks cannot hold whole."""
    num_tokens = sequence.max_len - 1  # the last token's K/V are never needed
    num_blocks = blocks.num_blocks_to_hold(num_tokens)
    if num_blocks > blocks.num_usable_blocks:
        raise PromptTooLong(
            f"the prompt has {sequence.num_prompt_tokens} tokens and max_tokens is "
            f"{sequence.sampling.max_tokens}: that needs {num_blocks} KV blocks of "
            f"{blocks.block_size} tokens, and the engine has "
            f"{blocks.num_usable_blocks}; shorten one of them or raise num_kv_blocks"
        )


class FoundPrefix(NamedTuple):
    """The first tokens of a request that are cached, and the hashes of its blocks."""

    num_tokens: int = 0
    block_hashes: tuple[bytes, ...] = ()


def find_prefix(request: EngineRequest, max_model_len: int, blocks: BlockManager) -> FoundPrefix:
    """Look in the prefix cache, from any thread: nothing is changed or held."""
    sequence = Sequence(request, max_model_len)
    num_blocks = blocks.find_prefix(sequence).num_blocks
    return FoundPrefix(num_blocks * blocks.block_size, tuple(sequence.block_hashes))
