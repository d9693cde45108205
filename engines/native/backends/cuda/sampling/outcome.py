"""What a row has brought: the tokens that were drawn for it, on the host."""

from __future__ import annotations

from torch import Tensor

from engines.base import TokenLogprob
from engines.native.backends.base import Sampled

Token = tuple[int, tuple[Tensor, ...] | None]
"""A drawn token; its log-probability, and the likeliest tokens with theirs, if they are asked."""


def sampled_of(tokens: list[Token], drafts: tuple[int, ...]) -> Sampled:
    """The tokens that were drawn, up to the first that is not the draft at its place."""
    num = num_accepted([token for token, _ in tokens], drafts)
    kept = tokens[: num + 1]
    if any(token < 0 for token, _ in kept):
        return Sampled(())
    logprobs = tuple(_logprob(token, of) for token, of in kept if of is not None)
    return Sampled(tuple(token for token, _ in kept), logprobs or None)


def _logprob(token: int, of: tuple[Tensor, ...]) -> TokenLogprob:
    chosen, ids, values = of
    top = tuple(zip(ids.tolist(), values.tolist(), strict=True))
    return TokenLogprob(token, float(chosen), top)


def num_accepted(sampled: list[int], drafts: tuple[int, ...]) -> int:
    """Number of leading draft tokens that equal the sampled ones."""
    pairs = zip(sampled, drafts, strict=False)
    return next((i for i, (token, draft) in enumerate(pairs) if token != draft), len(drafts))
