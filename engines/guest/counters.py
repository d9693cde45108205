"""Counts what a guest tells after its steps."""

from __future__ import annotations

from engines.base import EngineStats, StepCounts


class Counters:
    """Adds up what the engines of one start tell: a data parallel start has several."""

    def __init__(self) -> None:
        self.num_blocks = 0  # of all engines, once they are known
        self.block_size = 0
        self.num_steps = self.num_preemptions = 0
        self.num_generated = 0
        self.num_queries = self.num_hits = 0  # tokens of prompts, looked up and found
        self.steps = StepCounts()
        self._num_prompt = 0
        self._usage: dict[int, float] = {}  # the share of K/V blocks in use, by engine
        self._waiting: dict[int, int] = {}

    def note(self, engine: int, usage: float, num_waiting: int) -> None:
        """Take the end of an engine's step: its K/V blocks' share in use, and the number of
        waiting requests."""
        self.num_steps += 1
        self._usage[engine] = usage
        self._waiting[engine] = num_waiting

    def count_prompt(self, num_tokens: int) -> None:
        """Count the tokens of a request's prompt, once the request is begun."""
        self._num_prompt += num_tokens

    def stats(self, num_inside: int) -> EngineStats:
        """Return a snapshot, in which `num_inside` requests were begun and have not ended.

        A guest says nothing between two steps: of requests that were aborted since, only we know.
        """
        num_waiting = min(num_inside, sum(self._waiting.values()))
        usage = sum(self._usage.values()) / max(len(self._usage), 1) if num_inside else 0.0
        return EngineStats(
            num_running=num_inside - num_waiting,
            num_waiting=num_waiting,
            num_kv_blocks=self.num_blocks,
            num_free_kv_blocks=self.num_blocks - round(usage * self.num_blocks),
            num_preemptions=self.num_preemptions,
            num_steps=self.num_steps,
            prompt_tokens=self._num_prompt,
            generated_tokens=self.num_generated,
            prefix_cache_queries=self.num_queries,
            prefix_cache_hits=self.num_hits,
            kv_block_size=self.block_size,
            **self.steps.of_steps(),
        )
