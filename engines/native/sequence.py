"""One request while the engine works on it: its tokens and where their K/V lie."""

from __future__ import annotations

import secrets
import time

from engines.base import EngineRequest, FinishReason
from engines.native.grammar import Guide

GREEDY_BELOW = 1e-5  # temperatures under this are greedy: dividing by them would overflow


class Sequence:
    """Mutable state of one request; owned by the engine's worker thread.

    Positions, with block size b and window w:

        token_ids      [0 .. num_prompt_tokens) prompt, then what was generated
        K/V in cache   [0 .. num_computed_tokens); one step computes the tokens after it
        full_blocks    block i holds positions [i*b, (i+1)*b) of the full-attention layers
        window_blocks  the same for sliding layers; NULL_BLOCK once every position of the
                       block is w or more behind the next token
    """

    __slots__ = (
        "arrived_s",
        "block_hashes",
        "full_blocks",
        "guide",
        "is_biased",
        "is_greedy",
        "is_resumed",
        "max_len",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_prompt_tokens",
        "num_registered_blocks",
        "num_released_blocks",
        "queued_s",
        "rank",
        "request",
        "sampling",
        "seed",
        "stop_token_ids",
        "token_ids",
        "window_blocks",
    )

    def __init__(
        self, request: EngineRequest, max_model_len: int, guide: Guide | None = None
    ) -> None:
        self.request = request
        self.guide = guide  # what may follow; keeps its place through preemptions
        self.sampling = sampling = request.sampling
        self.is_greedy = sampling.temperature < GREEDY_BELOW
        self.is_biased = bool(
            sampling.logit_bias
            or sampling.presence_penalty
            or sampling.frequency_penalty
            or sampling.repetition_penalty != 1.0
        )
        self.token_ids = list(request.prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.max_len = min(self.num_prompt_tokens + sampling.max_tokens, max_model_len)
        self.stop_token_ids = frozenset(request.stop_token_ids)
        self.seed = secrets.randbits(64) if sampling.seed is None else sampling.seed
        self.num_cached_tokens = 0  # prompt tokens the prefix cache held at the first admission
        self.arrived_s = time.monotonic()
        self.queued_s = 0.0  # until the first admission
        self.is_resumed = False  # preempted at least once
        self.rank = (request.priority, 0)  # the scheduler sets the number of its admission
        self.num_computed_tokens = 0
        self.full_blocks: list[int] = []
        self.window_blocks: list[int] = []
        self.block_hashes: list[bytes] = []  # of every whole block of token_ids met so far
        self.num_registered_blocks = 0  # leading blocks offered to the prefix cache
        self.num_released_blocks = 0  # leading entries of window_blocks that are NULL_BLOCK

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens a step must compute before the next one can be sampled; 1 while decoding."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def num_generated_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    def append(self, token_id: int) -> FinishReason | None:
        """Add a generated token; says whether and why it is the last."""
        self.token_ids.append(token_id)
        if token_id in self.stop_token_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if len(self.token_ids) >= self.max_len else None
