"""A request in vLLM's words, and its outputs in ours."""

from __future__ import annotations

from typing import Any, Final

from engines.base import EngineRequest, SamplingParams, TokenEvent
from engines.errors import InvalidRequest
from engines.guest import outputs
from engines.guest.requests import cache_salt, num_left, prompt_token_ids, stops

MAX_TEMPERATURE: Final = 2.0
_MAX_SEED: Final = 2**63 - 1


def prompt_of(request: EngineRequest) -> dict[str, Any]:
    prompt: dict[str, Any] = {"prompt_token_ids": prompt_token_ids(request)}
    if (salt := cache_salt(request)) is not None:
        prompt["cache_salt"] = salt
    return prompt


def sampling_of(request: EngineRequest, end_token_id: int | None) -> dict[str, Any]:
    """Make the keywords of vLLM's SamplingParams; raises InvalidRequest for what it cannot have.

    `end_token_id`: what a grammar allows where nothing of the request's may follow.
    """
    sampling, num_generated = request.sampling, len(request.generated_token_ids)
    if sampling.temperature > MAX_TEMPERATURE:
        raise InvalidRequest(
            f"temperature is {sampling.temperature}; the engine that serves this model takes "
            f"0 to {MAX_TEMPERATURE:g}"
        )
    return {
        "max_tokens": num_left(request),
        "min_tokens": max(0, sampling.min_tokens - num_generated),
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repetition_penalty": sampling.repetition_penalty,
        "logit_bias": dict(sampling.logit_bias) or None,
        "seed": _seed(sampling),
        "repetition_detection": sampling.repetition_detection,
        "logprobs": sampling.logprobs,
        "prompt_logprobs": sampling.prompt_logprobs,
        "stop_token_ids": stops(request, end_token_id),
        "ignore_eos": True,
        "detokenize": False,
    }


def _seed(sampling: SamplingParams) -> int | None:
    """The seed, or None for -1, which vLLM treats as none."""
    return None if sampling.seed is None else sampling.seed & _MAX_SEED


class VllmOutputs(outputs.Outputs):
    """Turns the outputs of one request into events."""

    def __init__(self, request: EngineRequest, arrived_s: float) -> None:
        super().__init__("vLLM", request)
        self._arrived_s = arrived_s

    def event(self, output: Any) -> TokenEvent | None:
        """Make an event of what a RequestOutput adds, None for nothing.

        Raises RequestFailed for an end that is none.
        """
        completion = output.outputs[0]
        scheduled_s = output.metrics.scheduled_ts if output.metrics is not None else 0.0
        return self.event_of(
            completion.token_ids,
            "length" if completion.finish_reason == "repetition" else completion.finish_reason,
            completion.logprobs,
            output.num_cached_tokens or 0,
            scheduled_s - self._arrived_s,  # one clock: the machine's monotonic
            output.prompt_logprobs,
        )
