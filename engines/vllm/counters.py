"""Counts what vLLM tells after each step."""

from __future__ import annotations

from typing import Any

from engines.guest.counters import Counters


class VllmCounters(Counters):
    """Stands where vLLM expects a logger of its statistics (vllm.v1.metrics.loggers).

    One for each engine of a start that is data parallel; `stats` is their sum.
    """

    def record(self, scheduler: Any, iteration: Any, engine: int) -> None:
        """Take one step's SchedulerStats and IterationStats, where there are any."""
        if scheduler is not None:
            num_waiting = scheduler.num_waiting_reqs + scheduler.num_skipped_waiting_reqs
            self.note(engine, scheduler.kv_cache_usage, num_waiting)
            self.num_queries += scheduler.prefix_cache_stats.queries
            self.num_hits += scheduler.prefix_cache_stats.hits
            if (drafts := scheduler.spec_decoding_stats) is not None:
                right = drafts.num_accepted_tokens_per_pos
                self.steps.count_drafts(drafts.num_drafts, drafts.num_draft_tokens, right)
        if iteration is not None:
            self.num_preemptions += iteration.num_preempted_reqs
            self.num_generated += iteration.num_generation_tokens
            num_prompt = iteration.prompt_token_stats.computed
            self.steps.count_step(num_prompt + iteration.num_generation_tokens)
