"""A request in vLLM's words, and its outputs in ours."""

from __future__ import annotations

from typing import Any, Final

from engines.base import EngineRequest, FinishReason, SamplingParams, TokenEvent, TokenLogprob
from engines.errors import InvalidRequest, RequestFailed

MAX_TEMPERATURE: Final = 2.0
_FINISH: Final = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}
_MAX_SEED: Final = 2**63 - 1


def prompt_of(request: EngineRequest) -> dict[str, Any]:
    """A TokensPrompt; what another run has generated is one more part of it."""
    prompt: dict[str, Any] = {
        "prompt_token_ids": [*request.prompt_token_ids, *request.generated_token_ids]
    }
    if request.cache_salt is not None:
        prompt["cache_salt"] = f"salt {request.cache_salt}"  # vLLM takes "" for none
    return prompt


def sampling_of(request: EngineRequest, end_token_id: int | None) -> dict[str, Any]:
    """The keywords of vLLM's SamplingParams; raises InvalidRequest for what it cannot have.

    `end_token_id`: what a grammar allows where nothing of the request's may follow.
    """
    sampling, num_generated = request.sampling, len(request.generated_token_ids)
    if sampling.temperature > MAX_TEMPERATURE:
        raise InvalidRequest(
            f"temperature is {sampling.temperature}; the engine that serves this model takes "
            f"0 to {MAX_TEMPERATURE:g}"
        )
    stops = [*request.stop_token_ids]
    if end_token_id is not None and end_token_id not in stops:
        stops.append(end_token_id)
    return {
        "max_tokens": sampling.max_tokens - num_generated,
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
        "logprobs": sampling.logprobs,
        "stop_token_ids": stops,
        "ignore_eos": True,
        "detokenize": False,
    }


def _seed(sampling: SamplingParams) -> int | None:
    """vLLM takes -1 for none."""
    return None if sampling.seed is None else sampling.seed & _MAX_SEED


class Outputs:
    """Turns the outputs of one request into events."""

    def __init__(self, request: EngineRequest, arrived_s: float) -> None:
        self._stops = request.stop_token_ids
        self._num_prompt = len(request.prompt_token_ids)
        self._num_logprobs = request.sampling.logprobs
        self._arrived_s = arrived_s
        self._first: TokenEvent | None = None

    def event(self, output: Any) -> TokenEvent | None:
        """What a RequestOutput adds, None for nothing; raises RequestFailed for a bad end."""
        completion = output.outputs[0]
        token_ids = tuple(completion.token_ids)
        finish_reason = self._finish_reason(completion, token_ids)
        if not token_ids and finish_reason is None:
            return None
        num_cached, queued_s = self._once(output)
        event = TokenEvent(
            token_ids, self._logprobs(completion), finish_reason, num_cached, queued_s
        )
        self._first = self._first or event
        return event

    def _finish_reason(self, completion: Any, token_ids: tuple[int, ...]) -> FinishReason | None:
        reason = completion.finish_reason
        if reason is None:
            return None
        if reason not in _FINISH:
            raise RequestFailed(f"vLLM ended the request: {reason}")
        if reason == "stop" and token_ids and token_ids[-1] not in self._stops:
            raise RequestFailed("the grammar came to a point where no token may follow")
        return _FINISH[reason]

    def _once(self, output: Any) -> tuple[int, float]:
        """Cached tokens and the wait: as the first event had them."""
        if self._first is not None:
            return self._first.num_cached_tokens, self._first.queued_s
        scheduled_s = output.metrics.scheduled_ts if output.metrics is not None else 0.0
        queued_s = max(0.0, scheduled_s - self._arrived_s)  # one clock: the machine's monotonic
        return min(output.num_cached_tokens or 0, self._num_prompt), queued_s

    def _logprobs(self, completion: Any) -> tuple[TokenLogprob, ...] | None:
        num_top = self._num_logprobs
        if num_top is None:
            return None
        return tuple(
            _logprob(token_id, entries, num_top)
            for token_id, entries in zip(completion.token_ids, completion.logprobs, strict=True)
        )


def _logprob(token_id: int, entries: Any, num_top: int) -> TokenLogprob:
    """vLLM gives the chosen token and the likeliest together, by token id."""
    rivals = sorted(entries.items(), key=lambda entry: (-entry[1].logprob, entry[1].rank or 0))
    top = tuple((rival, entry.logprob) for rival, entry in rivals[:num_top])
    return TokenLogprob(token_id, entries[token_id].logprob, top)
