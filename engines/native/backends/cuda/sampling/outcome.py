"""What a row has brought: the tokens that were drawn for it, on the host."""

from __future__ import annotations

import torch
from torch import Tensor

from engines.base import TokenLogprob
from engines.native.backends.base import Sampled

Token = tuple[int, TokenLogprob | None]
"""A drawn token; its log-probability and the likeliest tokens with theirs, if they are asked."""


def sampled_of(tokens: list[Token], drafts: tuple[int, ...]) -> Sampled:
    """The tokens that were drawn, up to the first that is not the draft at its place."""
    num = num_accepted([token for token, _ in tokens], drafts)
    kept = tokens[: num + 1]
    if any(token < 0 for token, _ in kept):
        return Sampled(())
    logprobs = tuple(of for _, of in kept if of is not None)
    return Sampled(tuple(token for token, _ in kept), logprobs or None)


def logprobs_of(
    tokens: list[int], told: Tensor, num_top: list[int | None]
) -> list[TokenLogprob | None]:
    """The log-probabilities of those rows that want some; `told`: Sampler.told, on the host."""
    most, first_id = max(num or 0 for num in num_top), 1 + told.shape[1] // 2
    values = told.view(torch.float32)[:, : 1 + most].tolist()
    ids = told[:, first_id : first_id + most].tolist()
    return [
        None
        if num is None
        else TokenLogprob(token, chosen, tuple(zip(of[:num], top[:num], strict=True)))
        for token, num, of, (chosen, *top) in zip(tokens, num_top, ids, values, strict=True)
    ]


def num_accepted(sampled: list[int], drafts: tuple[int, ...]) -> int:
    """Number of leading draft tokens that equal the sampled ones."""
    pairs = zip(sampled, drafts, strict=False)
    return next((i for i, (token, draft) in enumerate(pairs) if token != draft), len(drafts))
