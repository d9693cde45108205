"""How long a request took, in the body of its own answer, for callers that ask by a header."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from service.answer.generation import Generation
from service.api.common.schema import ResponseModel
from service.request import METRICS_HEADER


class RequestMetrics(ResponseModel):
    """Times of one request, under vLLM's names."""

    queue_time_ms: float = Field(description="Waiting for the engine.")
    time_to_first_token_ms: float = Field(description="From the end of that wait.")
    generation_time_ms: float = Field(description="From the first token to the last.")
    mean_itl_ms: float | None = Field(description="Between two tokens; null for one token.")
    tokens_per_second: float | None = Field(description="From the end of the wait to the last.")


ShownMetrics = Annotated[
    RequestMetrics | None,
    Field(
        exclude_if=lambda value: value is None,
        description=f"Only with `{METRICS_HEADER}: 1`, and of one answer.",
    ),
]


def metrics_of(generation: Generation) -> RequestMetrics | None:
    """The times of a generation, if its caller asks for them and they are those of one run.

    Several answers have several times; those between rounds are a tool's.
    """
    choice, times = generation.choices[0], generation.choices[0].latencies
    has_tools = choice.hosted is not None and choice.hosted.num_calls > 0
    if not generation.plan.context.shows_metrics or len(generation.choices) > 1 or has_tools:
        return None
    if not times.first_at:
        return None
    taken_at = _taken_at(generation)
    num_later = sum(times.counts)  # tokens behind those that came first, together
    busy_s = times.last_at - taken_at
    return RequestMetrics(
        queue_time_ms=_ms(choice.queued_s),
        time_to_first_token_ms=_ms(times.first_at - taken_at),
        generation_time_ms=_ms(times.total_s),
        mean_itl_ms=_ms(times.total_s / num_later) if num_later else None,
        tokens_per_second=round(generation.num_completion_tokens / busy_s, 1) if busy_s else None,
    )


def metrics_field(generation: Generation) -> dict[str, Any]:
    """The same as the field of an answer; empty without them."""
    found = metrics_of(generation)
    return {} if found is None else {"metrics": found.model_dump()}


def metrics_bytes(generation: Generation) -> bytes:
    """The same behind the fields of a chunk."""
    found = metrics_of(generation)
    return b"" if found is None else b',"metrics":' + found.model_dump_json().encode()


def timings_of(generation: Generation) -> dict[str, float]:
    """The times so far of an only answer, under llama.cpp's names."""
    times, num_cached = generation.choices[0].latencies, generation.num_cached_tokens
    num_prompt = generation.num_prompt_tokens - num_cached
    prompt_s, answer_s = times.first_at - _taken_at(generation), times.total_s
    return {
        "cache_n": num_cached,
        **_rates("prompt", num_prompt, prompt_s),
        **_rates("predicted", generation.num_completion_tokens, answer_s),
    }


def _rates(name: str, num_tokens: int, seconds: float) -> dict[str, float]:
    return {
        f"{name}_n": num_tokens,
        f"{name}_ms": _ms(seconds),
        f"{name}_per_token_ms": _ms(seconds / num_tokens) if num_tokens else 0.0,
        f"{name}_per_second": round(num_tokens / seconds, 1) if seconds else 0.0,
    }


def _taken_at(generation: Generation) -> float:
    """When the engine took the request, of which a first token came."""
    choice = generation.choices[0]
    return min(generation.started_at + choice.queued_s, choice.latencies.first_at)


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
