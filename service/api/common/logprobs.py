"""Log-probabilities of visible tokens in OpenAI's shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engines.base import TokenLogprob
from service.harmony.types import Delta
from service.harmony.vocabulary import decode_bytes

_FLOOR = -9999.0  # JSON has no minus infinity; OpenAI documents this value for it


def entries(delta: Delta, logprobs: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    """One entry for each token that the delta's text came from."""
    return [_entry(logprobs[position]) for position in delta.positions]


def clamped(logprob: float) -> float:
    return max(logprob, _FLOOR)


def _entry(chosen: TokenLogprob) -> dict[str, Any]:
    top = [_token(token_id, logprob) for token_id, logprob in chosen.top]
    return {**_token(chosen.token_id, chosen.logprob), "top_logprobs": top}


def _token(token_id: int, logprob: float) -> dict[str, Any]:
    raw = decode_bytes(token_id)
    return {
        "token": raw.decode("utf-8", "replace"),
        "logprob": clamped(logprob),
        "bytes": list(raw),
    }
