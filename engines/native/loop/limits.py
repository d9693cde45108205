"""The bounds of one engine, and what it counts."""

from __future__ import annotations

from dataclasses import dataclass

from engines.base import StepCounts


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

    def count_prompt(self, num_tokens: int, num_queried: int, num_cached: int) -> None:
        """Count an admitted prompt; `num_queried`: tokens looked up in the prefix cache."""
        self.prompt_tokens += num_tokens
        self.prefix_cache_queries += num_queried
        self.prefix_cache_hits += num_cached
