"""Secrets out of spans, at the one place that all of them pass on their way out.

What identifies a client is in several attributes (its path, its user agent, its request
id, its trace state), and a key may be in any of them by mistake.
"""

from __future__ import annotations

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext, TraceState

from service.telemetry.logs import Redactor

# Asked for as they are, by OTEL_CAPTURE_CONTENT; and too long to be searched for shapes.
_CONTENT = frozenset({"gen_ai.input.messages", "gen_ai.output.messages"})


def without_secrets(span: ReadableSpan, redact: Redactor) -> ReadableSpan:
    """A span without secrets: itself when it has none, else a redacted copy."""
    given = dict(span.attributes or {})
    attributes = {
        name: value
        if name in _CONTENT or not isinstance(value, str | list | tuple)
        else _clean(value, redact)
        for name, value in given.items()
    }
    context = _context(span.context, redact)
    if attributes == given and context is span.context:
        return span
    return ReadableSpan(
        name=span.name,
        context=context,
        parent=span.parent,
        resource=span.resource,
        attributes=attributes,
        events=span.events,
        links=span.links,
        kind=span.kind,
        status=span.status,
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )


def _clean(value: object, redact: Redactor) -> tuple[str, ...] | str:
    if isinstance(value, str):
        return redact(value)
    assert isinstance(value, list | tuple)
    return tuple(redact(str(part)) for part in value)


def _context(context: SpanContext | None, redact: Redactor) -> SpanContext | None:
    """With a trace state of which every member that holds a secret is left out."""
    if context is None or not context.trace_state:
        return context
    members = list(context.trace_state.items())
    kept = [
        (name, value) for name, value in members if redact(f"{name}={value}") == f"{name}={value}"
    ]
    if kept == members:
        return context
    return SpanContext(
        context.trace_id, context.span_id, context.is_remote, context.trace_flags, TraceState(kept)
    )
