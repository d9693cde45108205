"""Token counts of a generation as the API reports them."""

from __future__ import annotations

from service.generation import Generation
from service.schemas.common import CompletionTokensDetails, PromptTokensDetails, Usage


def usage_of(generation: Generation) -> Usage:
    """All choices together; every generated token counts, control tokens included."""
    num_prompt, num_completion = generation.num_prompt_tokens, generation.num_completion_tokens
    return Usage(
        prompt_tokens=num_prompt,
        completion_tokens=num_completion,
        total_tokens=num_prompt + num_completion,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=generation.num_cached_tokens),
        completion_tokens_details=CompletionTokensDetails(
            reasoning_tokens=generation.num_reasoning_tokens
        ),
    )
