"""A request in TensorRT-LLM's words, and its outputs in ours."""

from __future__ import annotations

from typing import Any

from engines.base import EngineRequest, TokenEvent
from engines.guest import outputs
from engines.guest.requests import num_left, stops
from engines.tensorrt_llm.arguments import LIBRARY, MAX_LOGPROBS


def sampling_of(
    request: EngineRequest, end_token_id: int | None, vocab_size: int
) -> dict[str, Any]:
    """Make the keywords of TensorRT-LLM's SamplingParams from a request, but for its grammar.

    `end_token_id`: what a grammar allows where nothing of the request's may follow. Every end is a
    stop id; the `end_id` that the library asks for ends nothing.
    """
    sampling = request.sampling
    ends = stops(request, end_token_id)
    return {
        "max_tokens": num_left(request),
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "embedding_bias": _bias(sampling.logit_bias, vocab_size) if sampling.logit_bias else None,
        # The chosen token's is among them, if anywhere.
        "logprobs": None if sampling.logprobs is None else MAX_LOGPROBS,
        "stop_token_ids": ends,
        "include_stop_str_in_output": True,
        "end_id": ends[0] if ends else 0,
        "ignore_eos": True,
        "detokenize": False,
        "add_special_tokens": False,
    }


def _bias(biases: Any, vocab_size: int) -> Any:
    """Write biases as TensorRT-LLM has them: a tensor (vocab_size,) of float32."""
    import torch

    tensor = torch.zeros(vocab_size, dtype=torch.float32)
    tensor[list(biases)] = torch.tensor(list(biases.values()), dtype=torch.float32)
    return tensor


class TensorRtOutputs(outputs.Outputs):
    """Turns the states of one request into events."""

    def __init__(self, request: EngineRequest, queued_s: float) -> None:
        super().__init__(LIBRARY, request)
        self._queued_s = queued_s

    def event(self, output: Any) -> TokenEvent | None:
        """Make an event of what a RequestOutput brings, None for nothing.

        Raises RequestFailed for an end that is none.
        """
        completion = output.outputs[0]
        return self.event_of(
            completion.token_ids_diff,
            completion.finish_reason,
            completion.logprobs_diff,
            output.cached_tokens,
            self._queued_s,
        )
