"""What the scripted engine generates: its options, one request's progress, a prefix cache."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from engines.base import (
    Capabilities,
    EngineRequest,
    FinishReason,
    Outcome,
    Receive,
    TokenEvent,
    TokenLogprob,
)
from engines.prompt_logprobs import PromptToken, as_extras, pack
from tests.fake.faults import FakeFault

_FORCING = 100.0  # clients cannot send more
Count = Annotated[int, msgspec.Meta(ge=1)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]


class FakeOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a FakeEngine behaves; every option is plain JSON.

    A script that ends before its request does starts again from its first id.
    """

    script: tuple[int, ...] = ()  # every request generates these ids
    scripts: tuple[tuple[int, ...], ...] = ()  # or: requests take these in turn
    script_file: str = ""  # or: `write(prompt_token_ids)` of this Python file gives the ids
    capabilities: Capabilities = Capabilities()  # what it cannot do is not even sent to it
    step_s: NotNegative = 0.0  # 0: as fast as possible
    tokens_per_step: Count = 1
    fail_at: int | None = None  # RequestFailed once this many tokens were generated
    faults: tuple[FakeFault, ...] = ()  # prompts that do harm
    start_s: NotNegative = 0.0  # how long starting takes
    start_step: str = ""  # what it says that it does meanwhile
    start_error: str | None = None  # starting fails with this message
    max_model_len: Count = 131_072
    vocab_size: Count = 201_088
    max_num_seqs: Count = 256
    max_num_waiting: Count | None = None
    block_size: Count = 16

    def num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)


def _no_receiver(outcome: Outcome) -> None:
    """The receiver before a sequence begins."""


@dataclass(slots=True, eq=False)
class FakeSequence:
    """One request on its way through its script."""

    request: EngineRequest
    script: Sequence[int]
    num_cached_tokens: int = 0
    arrived_s: float = 0.0
    receive: Receive = _no_receiver
    queued_s: float = 0.0
    num_generated: int = 0
    has_scored: bool = False  # the prompt's log-probabilities were returned

    @property
    def num_tokens(self) -> int:
        return len(self.request.prompt_token_ids) + self.num_generated

    def advance(self, num_tokens: int, options: FakeOptions) -> TokenEvent:
        """Generate the next tokens: fewer than asked for when the request ends within them."""
        num_left = min(
            self.request.sampling.max_tokens - self.num_generated,
            options.max_model_len - self.num_tokens,
        )
        token_ids, finish_reason = self._next_ids(num_tokens, num_left)
        self.num_generated += len(token_ids)
        logprobs = self._logprobs(token_ids, options.vocab_size)
        extras = self._extras(options.vocab_size)
        return TokenEvent(
            token_ids, logprobs, finish_reason, self.num_cached_tokens, self.queued_s, extras
        )

    def _next_ids(
        self, num_tokens: int, num_left: int
    ) -> tuple[tuple[int, ...], FinishReason | None]:
        token_ids: list[int] = []
        for position in range(self.num_generated, self.num_generated + min(num_tokens, num_left)):
            token_ids.append(self._id_at(position))
            if token_ids[-1] in self.request.stop_token_ids:
                return tuple(token_ids), FinishReason.STOP
        is_last = len(token_ids) == num_left
        return tuple(token_ids), FinishReason.LENGTH if is_last else None

    def _id_at(self, position: int) -> int:
        """The script's id, one that a bias forces, or another if that would stop too early."""
        for token_id, bias in self.request.sampling.logit_bias.items():
            if bias > _FORCING:
                return token_id
        token_id, stops = self.script[position % len(self.script)], self.request.stop_token_ids
        if token_id in stops and position < self.request.sampling.min_tokens:
            return next(other for other in itertools.count() if other not in stops)
        return token_id

    def _extras(self, vocab_size: int) -> dict[str, Any] | None:
        """Each token of the prompt is the likeliest; with the first event."""
        num_top = self.request.sampling.prompt_logprobs
        if num_top is None or self.has_scored:
            return None
        self.has_scored = True
        tokens = (
            PromptToken(
                token_id,
                -1.0,
                1,
                tuple(((token_id + rank) % vocab_size, -1.0 - rank) for rank in range(num_top)),
            )
            for token_id in self.request.prompt_token_ids[1:]
        )
        return as_extras([pack(tokens, num_top)])

    def _logprobs(
        self, token_ids: tuple[int, ...], vocab_size: int
    ) -> tuple[TokenLogprob, ...] | None:
        num_top = self.request.sampling.logprobs
        if num_top is None:
            return None
        return tuple(
            TokenLogprob(
                token_id,
                0.0,
                tuple(((token_id + rank) % vocab_size, -20.0 * rank) for rank in range(num_top)),
            )
            for token_id in token_ids
        )


class FakePrefixCache:
    """Remembers which prompts were seen, in whole blocks, the oldest forgotten first."""

    def __init__(self, block_size: int, max_blocks: int) -> None:
        self._block_size = block_size
        self._max_blocks = max_blocks
        self._seen: dict[int, None] = {}

    def look_up(self, request: EngineRequest) -> int:
        """Return how many leading prompt tokens are cached, and cache the whole prompt."""
        prompt, num_cached, prefix = request.prompt_token_ids, 0, hash(request.cache_salt)
        is_hit = True
        # The last token is always computed: its logits choose the first new token.
        for end in range(self._block_size, len(prompt), self._block_size):
            prefix = hash((prefix, prompt[end - self._block_size : end]))
            is_hit = is_hit and prefix in self._seen
            num_cached = end if is_hit else num_cached
            self._seen[prefix] = None
        while len(self._seen) > self._max_blocks:
            del self._seen[next(iter(self._seen))]
        return num_cached
