"""Log-probabilities of prompts, packed and unpacked."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from engines.base import TokenEvent

NAME: Final = "prompt_logprobs"  # of the field, and of its result in TokenEvent.extras


class PromptLogprobs(NamedTuple):
    """Log-probabilities of neighbouring prompt tokens, each given all tokens before it.

    Packed in the machine's byte order, since a prompt may have a hundred thousand tokens.
    """

    num_top: int
    logprobs: bytes  # float32 (tokens)
    ranks: bytes  # int32 (tokens); 1: the likeliest
    top_ids: bytes = b""  # int32 (tokens, num_top), best first
    top_logprobs: bytes = b""  # float32 (tokens, num_top)


@dataclass(frozen=True, slots=True)
class PromptToken:
    """A token of a prompt."""

    token_id: int
    logprob: float
    rank: int  # 1: the likeliest
    top: tuple[tuple[int, float], ...]  # (token id, logprob), best first


def packed_in(event: TokenEvent) -> tuple[PromptLogprobs, ...] | None:
    """Those of all prompt tokens but the first, in order, on the first event that has them."""
    if event.extras is None or NAME not in event.extras:
        return None
    return tuple(PromptLogprobs(*part) for part in event.extras[NAME])


def as_extras(packed: Iterable[PromptLogprobs]) -> dict[str, Any]:
    return {NAME: tuple(packed)}


def unpacked(
    packed: Sequence[PromptLogprobs], prompt_token_ids: Sequence[int]
) -> Iterator[PromptToken]:
    token_ids = iter(prompt_token_ids[1:])
    for part in packed:
        ids, tops = array("i", part.top_ids), array("f", part.top_logprobs)
        rows = zip(array("f", part.logprobs), array("i", part.ranks), strict=True)
        for row, (logprob, rank) in enumerate(rows):
            at = slice(row * part.num_top, (row + 1) * part.num_top)
            top = tuple(zip(ids[at], tops[at], strict=True))
            yield PromptToken(next(token_ids), logprob, rank, top)


def pack(tokens: Iterable[PromptToken], num_top: int) -> PromptLogprobs:
    """Tokens in the packed form; each must have `num_top` likeliest tokens."""
    listed = list(tokens)
    return PromptLogprobs(
        num_top,
        array("f", [token.logprob for token in listed]).tobytes(),
        array("i", [token.rank for token in listed]).tobytes(),
        array("i", [top_id for token in listed for top_id, _ in token.top]).tobytes(),
        array("f", [value for token in listed for _, value in token.top]).tobytes(),
    )
