"""What an engine cannot do is refused before it is sent."""

from __future__ import annotations

from collections.abc import Iterator

from engines.base import Capabilities, EngineRequest
from engines.errors import InvalidGrammar, InvalidRequest


def check_capabilities(request: EngineRequest, capabilities: Capabilities) -> None:
    """Raise InvalidRequest naming the first wish that the engine cannot fulfil."""
    for name in _wishes(request):
        if not getattr(capabilities, name):
            error = InvalidGrammar if name == "grammar" else InvalidRequest
            raise error(f"{name} is not supported by the engine that serves this model; omit it")
    num_logprobs, limit = request.sampling.logprobs, capabilities.max_logprobs
    if num_logprobs is not None and limit is not None and num_logprobs > limit:
        raise InvalidRequest(
            f"logprobs is {num_logprobs}; the engine that serves this model gives at most {limit}"
        )


def _wishes(request: EngineRequest) -> Iterator[str]:
    sampling = request.sampling
    wishes = {
        "grammar": request.grammar is not None,
        "seed": sampling.seed is not None,
        "top_k": sampling.top_k > 0,
        "min_p": sampling.min_p > 0,
        "min_tokens": sampling.min_tokens > 0,
        "logit_bias": bool(sampling.logit_bias),
        "presence_penalty": sampling.presence_penalty != 0,
        "frequency_penalty": sampling.frequency_penalty != 0,
        "repetition_penalty": sampling.repetition_penalty != 1,
        "priority": request.priority != 0,
        "cache_salt": request.cache_salt is not None,
        "continuation": bool(request.generated_token_ids),
    }
    return (name for name, is_wished in wishes.items() if is_wished)
