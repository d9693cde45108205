"""Spans of a request: the exchange, who asked, the generation and its phases.

All but the first are written when their work has ended, from times taken anyway, so that a
stream costs no more when it is traced.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

from parts.otel import content
from service.answer.generation import Generation
from service.answer.plan import Plan
from service.request import RequestContext, Trace

_NAME = "harmonium"
_OPERATIONS = {"/v1/completions": "text_completion"}


class Spans:
    """Writes the spans of one process's requests."""

    def __init__(self, provider: TracerProvider, model: str) -> None:
        self._tracer = provider.get_tracer(_NAME)
        self._model = model

    def begin(self, request: RequestContext, attributes: dict[str, Any]) -> Trace:
        """Open the exchange's span under the caller's; gives the trace that has it."""
        name = f"{attributes['http.request.method']} {request.route}"
        span = self._tracer.start_span(
            name, _remote(request.trace), kind=SpanKind.SERVER, attributes=attributes
        )
        ids = span.get_span_context()
        return replace(
            request.trace,
            trace_id=f"{ids.trace_id:032x}",
            span_id=f"{ids.span_id:016x}",
            is_sampled=ids.trace_flags.sampled,
            span=span,
        )

    def end(self, request: RequestContext, status: int) -> None:
        """Close the exchange's span, with what was noted on the way."""
        span: Span = request.trace.span
        context = set_span_in_context(span)
        for name, start, end in request.notes.phases:
            self._write(name, context, start, end)
        if status:
            span.set_attribute("http.response.status_code", status)
        if max(status, request.notes.error_status) >= 500:
            span.set_attribute("error.type", request.notes.error_code or str(status))
            span.set_status(Status(StatusCode.ERROR))
        span.end()

    def generation(self, generation: Generation) -> None:
        """Write the spans of a generation that has ended, under the exchange that asked for it."""
        request = generation.plan.context
        ended = generation.ended_at or time.perf_counter()
        operation = _OPERATIONS.get(request.route, "chat")
        span = self._tracer.start_span(
            f"{operation} {self._model}",
            _remote(request.trace),
            attributes=dict(self._attributes(generation, operation)),
            start_time=_epoch_ns(generation.started_at),
        )
        if generation.outcome == "failure":
            span.set_attribute("error.type", generation.error_type or "_OTHER")
            span.set_status(Status(StatusCode.ERROR))
        context = set_span_in_context(span)
        for name, start, end in _phases(generation, ended):
            self._write(name, context, start, end)
        span.end(_epoch_ns(ended))

    def _write(self, name: str, context: Context, start: float, end: float) -> None:
        span = self._tracer.start_span(name, context, start_time=_epoch_ns(start))
        span.end(_epoch_ns(max(start, end)))

    def _attributes(self, generation: Generation, operation: str) -> Iterator[tuple[str, Any]]:
        yield "gen_ai.operation.name", operation
        yield "gen_ai.provider.name", _NAME
        yield "gen_ai.request.model", self._model
        yield "gen_ai.response.model", self._model
        yield from _asked(generation.plan)
        yield from _answered(generation)
        if generation.plan.context.trace.has_content:
            yield from _spoken(generation)


def _asked(plan: Plan) -> Iterator[tuple[str, Any]]:
    sampling = plan.sampling
    yield "harmonium.request.id", plan.context.id
    yield "gen_ai.request.max_tokens", sampling.max_tokens
    yield "gen_ai.request.temperature", sampling.temperature
    yield "gen_ai.request.top_p", sampling.top_p
    yield "gen_ai.request.choice.count", plan.num_choices
    yield "gen_ai.output.type", "json" if plan.grammar else "text"
    if sampling.top_k:
        yield "gen_ai.request.top_k", sampling.top_k
    if sampling.seed is not None:
        yield "gen_ai.request.seed", sampling.seed
    if plan.stop:
        yield "gen_ai.request.stop_sequences", list(plan.stop)


def _answered(generation: Generation) -> Iterator[tuple[str, Any]]:
    yield "gen_ai.usage.input_tokens", generation.num_prompt_tokens
    yield "gen_ai.usage.output_tokens", generation.num_completion_tokens
    yield "gen_ai.usage.cache_read.input_tokens", generation.num_cached_tokens
    yield "gen_ai.usage.reasoning.output_tokens", generation.num_reasoning_tokens
    yield "gen_ai.response.finish_reasons", _reasons(generation)
    if generation.first_token_at is not None:
        wait_s = generation.first_token_at - generation.started_at
        yield "gen_ai.response.time_to_first_chunk", wait_s


def _spoken(generation: Generation) -> Iterator[tuple[str, str]]:
    prompts = [id for prompt in generation.plan.prompts for id in prompt]
    answers = [tuple(choice.transcript or ()) for choice in generation.choices]
    reasons = _reasons(generation)
    yield "gen_ai.input.messages", content.input_messages(generation.plan.format, prompts)
    said = list(zip(answers, reasons, strict=True))
    yield "gen_ai.output.messages", content.output_messages(generation.plan.format, said)


def _reasons(generation: Generation) -> list[str]:
    default = "error" if generation.outcome == "failure" else "abort"
    return [choice.finish_reason or default for choice in generation.choices]


def _phases(generation: Generation, ended: float) -> Iterator[tuple[str, float, float]]:
    """Queue, prefill, decode, and parse: the format's share of the decoding, as if done at once."""
    started, first = generation.started_at, generation.first_event_at
    if not first:
        yield "queue", started, ended
        return
    # The wait was measured in the engine process, the first token here.
    admitted = min(started + generation.queued_s, first)
    yield "queue", started, admitted
    yield "prefill", admitted, first
    yield "decode", first, ended
    yield "parse", first, first + sum(choice.parse_s for choice in generation.choices)


def _remote(trace: Trace) -> Context | None:
    """The span whose child comes next: the caller's, or the exchange's own."""
    # An empty context, because the current one may hold the span of another request.
    if not trace.trace_id:
        return Context()
    flags = TraceFlags(TraceFlags.SAMPLED if trace.is_sampled else TraceFlags.DEFAULT)
    ids = int(trace.trace_id, 16), int(trace.span_id, 16)
    state = TraceState.from_header([trace.state]) if trace.state else None
    parent = NonRecordingSpan(SpanContext(*ids, True, flags, state))
    return set_span_in_context(parent, Context())


def _epoch_ns(moment: float) -> int:
    """A time of perf_counter as nanoseconds since 1970."""
    # Reckoned back from now: perf_counter has no epoch, and no setting of the clock changes it.
    return time.time_ns() - int((time.perf_counter() - moment) * 1e9)
