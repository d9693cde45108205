"""One request while the engine works on it: its tokens and where their K/V lie."""

from __future__ import annotations

import secrets
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import Any

from engines.base import LOWEST_PRIORITY, EngineRequest, FinishReason, TokenEvent, TokenLogprob
from engines.fields import SamplingParams
from engines.native.grammar.compiler import Guide
from engines.native.grammar.masks import Mask
from engines.native.host.repetition import Repetition, repetition_of
from engines.prompt_logprobs import PromptLogprobs, as_extras


@dataclass(slots=True, eq=False, repr=False)
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

    request: EngineRequest
    max_model_len: InitVar[int]
    guide: Guide | None = None  # what may follow; keeps its place through preemptions
    arrived_s: float = 0.0
    _: KW_ONLY
    is_bulk: bool = field(init=False)  # no client waits
    sampling: SamplingParams = field(init=False)
    is_masked: bool = field(init=False)  # a grammar or min_tokens restricts the next token
    mask: Mask | None = None  # of the next token, once it is being made
    token_ids: list[int] = field(init=False)
    num_prompt_tokens: int = field(init=False)
    max_len: int = field(init=False)
    stop_token_ids: frozenset[int] = field(init=False)
    seed: int = field(init=False)
    num_cached_tokens: int = 0  # prompt tokens the prefix cache held at the first admission
    queued_s: float = 0.0  # until the first admission
    is_resumed: bool = False  # preempted at least once
    rank: tuple[int, int] = field(init=False)  # the scheduler sets the number of its admission
    is_ended: bool = False  # results of its remaining steps are dropped
    slot: int | None = None  # its place in the backend while it runs
    is_started: bool = False  # the backend knows what is in the slot
    num_sent_blocks: int = 0  # leading entries of the tables that the backend knows
    num_computed_tokens: int = 0
    num_scheduled_tokens: int = 0
    num_pending_tokens: int = 0
    is_verifying: bool = False  # how many drafts are right is not known yet
    notes: dict[str, Any] = field(default_factory=dict)  # of options, by the part's name
    scores_prompt: bool = field(init=False)  # until they are returned
    prompt_logprobs: list[PromptLogprobs] = field(default_factory=list)  # of the computed chunks
    repetition: Repetition | None = field(init=False)
    is_plain: bool = field(init=False)  # only a token's number matters, once it decodes
    is_steady: bool = False  # its numbers are kept by Steady
    full_blocks: list[int] = field(default_factory=list)
    window_blocks: list[int] = field(default_factory=list)
    block_hashes: list[bytes] = field(default_factory=list)  # of every whole block met so far
    num_prefix_blocks: int = 0  # leading blocks that were found, not computed
    num_registered_blocks: int = 0  # leading blocks offered to the prefix cache
    num_released_blocks: int = 0  # leading entries of window_blocks that are NULL_BLOCK

    def __post_init__(self, max_model_len: int) -> None:
        request, self.sampling = self.request, self.request.sampling
        self.is_bulk = request.priority == LOWEST_PRIORITY
        self.is_masked = self.guide is not None or self.sampling.min_tokens > 0
        self.token_ids = [*request.prompt_token_ids, *request.generated_token_ids]
        self.num_prompt_tokens = len(request.prompt_token_ids)
        self.max_len = min(self.num_prompt_tokens + self.sampling.max_tokens, max_model_len)
        self.stop_token_ids = frozenset(request.stop_token_ids)
        seed = self.sampling.seed
        self.seed = secrets.randbits(64) if seed is None else seed
        self.rank = (request.priority, 0)
        self.scores_prompt = self.sampling.prompt_logprobs is not None
        self.repetition = repetition_of(request)
        is_told = self.sampling.logprobs is not None or self.repetition is not None
        self.is_plain = not (self.is_masked or is_told)

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
