"""Counts what vLLM tells after each step."""

from __future__ import annotations

from typing import Any

from engines.base import EngineStats


class Counters:
    """Stands where vLLM expects a logger of its statistics (vllm.v1.metrics.loggers).

    One for each engine of a start that is data parallel; `stats` is their sum.
    """

    def __init__(self) -> None:
        self.num_blocks = 0  # of all engines, known once they have started
        self.block_size = 0
        self._usage: dict[int, float] = {}  # the share of K/V blocks in use, by engine
        self._waiting: dict[int, int] = {}
        self._num_steps = self._num_preemptions = 0
        self._num_prompt = self._num_generated = 0
        self._num_queries = self._num_hits = 0

    def record(self, scheduler: Any, iteration: Any, engine: int) -> None:
        """Take one step's SchedulerStats and IterationStats, where there are any."""
        if scheduler is not None:
            self._num_steps += 1
            self._usage[engine] = scheduler.kv_cache_usage
            self._waiting[engine] = scheduler.num_waiting_reqs + scheduler.num_skipped_waiting_reqs
            self._num_queries += scheduler.prefix_cache_stats.queries
            self._num_hits += scheduler.prefix_cache_stats.hits
        if iteration is not None:
            self._num_preemptions += iteration.num_preempted_reqs
            self._num_generated += iteration.num_generation_tokens

    def count_prompt(self, num_tokens: int) -> None:
        """A request was begun."""
        self._num_prompt += num_tokens

    def stats(self, num_inside: int) -> EngineStats:
        """A snapshot; `num_inside` requests were begun and have not ended.

        vLLM says nothing between two steps: of requests that were aborted since, only we know.
        """
        num_waiting = min(num_inside, sum(self._waiting.values()))
        usage = sum(self._usage.values()) / max(len(self._usage), 1) if num_inside else 0.0
        return EngineStats(
            num_running=num_inside - num_waiting,
            num_waiting=num_waiting,
            num_kv_blocks=self.num_blocks,
            num_free_kv_blocks=self.num_blocks - round(usage * self.num_blocks),
            num_preemptions=self._num_preemptions,
            num_steps=self._num_steps,
            prompt_tokens=self._num_prompt,
            generated_tokens=self._num_generated,
            prefix_cache_queries=self._num_queries,
            prefix_cache_hits=self._num_hits,
            kv_block_size=self.block_size,
        )
