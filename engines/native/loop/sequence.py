"""One request while the engine works on it: its tokens and where their K/V lie."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any

from engines.base import LOWEST_PRIORITY, EngineRequest, FinishReason, TokenEvent, TokenLogprob
from engines.native.grammar.compiler import Guide
from engines.native.grammar.masks import Mask
from engines.native.host.repetition import repetition_of
from engines.prompt_logprobs import PromptLogprobs, as_extras


class Sequence:
    """Mutable state of one request; owned by the engine's worker thread.

    Positions, with block size b and window w:

        token_ids      [0 .. num_prompt_tokens) prompt, then what was generated
        K/V in cache   [0 .. num_computed_tokens) of collected steps
        K/V to come    [num_computed_tokens .. num_scheduled_tokens) of steps not yet collected,
                       which will also add num_pending_tokens to token_ids
        full_blocks    block i holds positions [i*b, (i+1)*b) of the full-attention layers
        window_blocks  the same for sliding layers; NULL_BLOCK once every position of the
                       block is w or more behind the next token
    """

    __slots__ = (
        "arrived_s",
        "block_hashes",
        "full_blocks",
        "guide",
        "is_bulk",
        "is_ended",
        "is_masked",
        "is_plain",
        "is_resumed",
        "is_started",
        "is_steady",
        "is_verifying",
        "mask",
        "max_len",
        "notes",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_pending_tokens",
        "num_prefix_blocks",
        "num_prompt_tokens",
        "num_registered_blocks",
        "num_released_blocks",
        "num_scheduled_tokens",
        "num_sent_blocks",
        "prompt_logprobs",
        "queued_s",
        "rank",
        "repetition",
        "request",
        "sampling",
        "scores_prompt",
        "seed",
        "slot",
        "stop_token_ids",
        "token_ids",
        "window_blocks",
    )

    def __init__(
        self,
        request: EngineRequest,
        max_model_len: int,
        guide: Guide | None = None,
        arrived_s: float = 0.0,
    ) -> None:
        self.request = request
        self.is_bulk = request.priority == LOWEST_PRIORITY  # no client waits
        self.guide = guide  # what may follow; keeps its place through preemptions
        self.sampling = sampling = request.sampling
        # Whether a grammar or min_tokens restricts the next token.
        self.is_masked = guide is not None or sampling.min_tokens > 0
        self.mask: Mask | None = None  # of the next token, once it is being made
        self.token_ids = [*request.prompt_token_ids, *request.generated_token_ids]
        self.num_prompt_tokens = len(request.prompt_token_ids)
        self.max_len = min(self.num_prompt_tokens + sampling.max_tokens, max_model_len)
        self.stop_token_ids = frozenset(request.stop_token_ids)
        self.seed = secrets.randbits(64) if sampling.seed is None else sampling.seed
        self.num_cached_tokens = 0  # prompt tokens the prefix cache held at the first admission
        self.arrived_s = arrived_s
        self.queued_s = 0.0  # until the first admission
        self.is_resumed = False  # preempted at least once
        self.rank = (request.priority, 0)  # the scheduler sets the number of its admission
        self.is_ended = False  # results of its remaining steps are dropped
        self.slot: int | None = None  # its place in the backend while it runs
        self.is_started = False  # the backend knows what is in the slot
        self.num_sent_blocks = 0  # leading entries of the tables that the backend knows
        self.num_computed_tokens = 0
        self.num_scheduled_tokens = 0
        self.num_pending_tokens = 0
        self.is_verifying = False  # how many drafts are right is not known yet
        self.notes: dict[str, Any] = {}  # of options, by the part's name
        self.scores_prompt = sampling.prompt_logprobs is not None  # until they are returned
        self.prompt_logprobs: list[PromptLogprobs] = []  # of the computed chunks, in order
        self.repetition = repetition_of(request)
        # Whether of a token only its number matters, once it decodes.
        is_told = sampling.logprobs is not None or self.repetition is not None
        self.is_plain = not (self.is_masked or is_told)
        self.is_steady = False  # its numbers are kept by Steady
        self.full_blocks: list[int] = []
        self.window_blocks: list[int] = []
        self.block_hashes: list[bytes] = []  # of every whole block of token_ids met so far
        self.num_prefix_blocks = 0  # leading blocks that were found, not computed
        self.num_registered_blocks = 0  # leading blocks offered to the prefix cache
        self.num_released_blocks = 0  # leading entries of window_blocks that are NULL_BLOCK

    @property
    def num_schedulable_tokens(self) -> int:
        """Tokens that may be computed now so that the next can be sampled; 1 while decoding.

        0 while a step that is not collected ends the sequence.
        """
        num_tokens = len(self.token_ids) + self.num_pending_tokens
        return 0 if num_tokens >= self.max_len else num_tokens - self.num_scheduled_tokens

    @property
    def is_held(self) -> bool:
        """Whether a step has not waited for its mask, which is still being made."""
        return self.mask is not None and self.mask.is_late and not self.mask.is_made

    @property
    def num_generated_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    def wants_scores(self, start: int = 0) -> bool:
        """Whether prompt tokens after position `start` need log-probabilities."""
        return self.scores_prompt and start < self.num_prompt_tokens - 1

    def take_extras(self) -> dict[str, Any] | None:
        """What the first event has beside its tokens, once, where it was asked for."""
        if not self.scores_prompt:
            return None
        scores, self.prompt_logprobs = self.prompt_logprobs, []
        self.scores_prompt = False
        return as_extras(scores)

    @property
    def may_stop(self) -> bool:
        """Whether min_tokens tokens have been generated, so that a stop token may come."""
        return self.num_generated_tokens >= self.sampling.min_tokens

    def extend(self, token_ids: tuple[int, ...]) -> tuple[tuple[int, ...], FinishReason | None]:
        """Append tokens up to the first that ends the answer; those appended, and why it ends."""
        for i, token_id in enumerate(token_ids):
            if (finish_reason := self.append(token_id)) is not None:
                return token_ids[: i + 1], finish_reason
        return token_ids, None

    def append(self, token_id: int) -> FinishReason | None:
        """Add a generated token; says whether and why it is the last."""
        self.token_ids.append(token_id)
        if token_id in self.stop_token_ids:
            return FinishReason.STOP
        repeats = self.repetition is not None and self.repetition.add(token_id) and self.may_stop
        return FinishReason.LENGTH if repeats or len(self.token_ids) >= self.max_len else None

    def event(
        self,
        token_ids: tuple[int, ...],
        logprobs: tuple[TokenLogprob, ...] | None,
        finish_reason: FinishReason | None,
    ) -> TokenEvent:
        """What a step added; `logprobs` may have more than these tokens'."""
        rest = self.num_cached_tokens, self.queued_s, self.take_extras()
        return TokenEvent(token_ids, logprobs and logprobs[: len(token_ids)], finish_reason, *rest)


def by_phase(running: Iterable[Sequence]) -> tuple[list[Sequence], list[Sequence]]:
    """Those that need one token, which go first, and those whose prompt is being read."""
    decoding, prefilling = [], []
    for sequence in running:
        num_tokens = sequence.num_schedulable_tokens
        if num_tokens == 1:
            decoding.append(sequence)
        elif num_tokens > 1:
            prefilling.append(sequence)
    return decoding, prefilling


def much_shorter(later: list[Sequence]) -> list[Sequence]:
    """Those that have at most half as much left as the first, which keeps a part of the step."""
    most = later[0].num_schedulable_tokens // 2 if later else 0
    shorter = [sequence for sequence in later[1:] if sequence.num_schedulable_tokens <= most]
    return sorted(shorter, key=shortest)


def shortest(sequence: Sequence) -> tuple[int, int]:
    """A key that puts the most urgent first, and of these the shortest."""
    return sequence.rank[0], sequence.num_schedulable_tokens


def rank(sequence: Sequence) -> tuple[int, int]:
    """A key that puts the most urgent first, and of these the first that was admitted."""
    return sequence.rank
