"""What every guest is asked in the same way."""

from __future__ import annotations

from engines.base import EngineRequest


def prompt_token_ids(request: EngineRequest) -> list[int]:
    """Return the ids to compute: what another run has generated is one more part of the prompt."""
    return [*request.prompt_token_ids, *request.generated_token_ids]


def num_left(request: EngineRequest) -> int:
    """Return how many tokens may still come, less those of an earlier run."""
    return request.sampling.max_tokens - len(request.generated_token_ids)


def stops(request: EngineRequest, end_token_id: int | None) -> list[int]:
    """Return the ids of all tokens that end the answer.

    `end_token_id`: what a grammar allows where nothing of the request's may follow.
    """
    known = [*request.stop_token_ids]
    return known if end_token_id is None or end_token_id in known else [*known, end_token_id]


def cache_salt(request: EngineRequest) -> str | None:
    """Return the salt of the prefix cache as libraries take it: to them "" would be none."""
    return None if request.cache_salt is None else f"salt {request.cache_salt}"
