"""Counts what TensorRT-LLM tells after its steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engines.base import TokenEvent
from engines.guest.counters import Counters


class TrtLlmCounters(Counters):
    """Steps tell of queue and K/V; what was generated and found cached, each request tells."""

    def record(self, iteration: Mapping[str, Any], num_ranks: int) -> None:
        """Take one step's statistics (`get_stats_async`), those of the first rank.

        The ranks of a data parallel start share the work evenly: the first represents all.
        """
        cache = iteration.get("kvCacheStats") or {}
        num_blocks = cache.get("maxNumBlocks", 0)
        if num_blocks:
            self.num_blocks = num_blocks * num_ranks
            self.block_size = cache.get("tokensPerBlock", self.block_size)
        usage = cache.get("usedNumBlocks", 0) / num_blocks if num_blocks else 0.0
        batch = iteration.get("inflightBatchingStats") or {}
        num_paused = batch.get("numPausedRequests", 0)
        self.num_preemptions += num_paused
        self.note(0, usage, (iteration.get("numQueuedRequests", 0) + num_paused) * num_ranks)

    def count(self, event: TokenEvent, num_prompt: int, is_first: bool) -> None:
        """Count the tokens a request was given, and with the first what was cached of its prompt.

        `num_prompt`: tokens of the prompt.
        """
        self.num_generated += len(event.token_ids)
        if is_first:
            self.num_queries += num_prompt
            self.num_hits += event.num_cached_tokens
