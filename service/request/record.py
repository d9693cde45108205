"""What telemetry knows of the HTTP request at hand, wherever in the code it is asked."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from starlette.datastructures import Headers

OTHER = "other"
_MAX_STATE_CHARS = 512  # what W3C asks everyone to hand on
_TRACEPARENT = re.compile(
    r"(?P<version>[0-9a-f]{2})-(?P<trace>(?!0{32})[0-9a-f]{32})-(?P<span>(?!0{16})[0-9a-f]{16})"
    r"-(?P<flags>[0-9a-f]{2})(?:-.*)?"
)
_BELOW = {"/v1/responses/": "/v1/responses/{response_id}", "/v1/models/": "/v1/models/{model_id}"}
_ENDS = ("/cancel", "/input_items")
_ROUTES = frozenset(
    (
        "/v1/chat/completions",
        "/v1/chat/completions/render",
        "/v1/completions",
        "/v1/responses",
        "/v1/responses/input_tokens",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/models",
        "/v1/health/live",
        "/v1/health/ready",
        "/health",
        "/v1/version",
        "/v1/metadata",
        "/v1/metrics",
        "/metrics",
        "/tokenize",
        "/detokenize",
    )
)


class Counted(Protocol):
    """What a generation counts of itself."""

    ended_at: float | None

    @property
    def outcome(self) -> str: ...

    @property
    def num_prompt_tokens(self) -> int: ...

    @property
    def num_cached_tokens(self) -> int: ...

    @property
    def num_completion_tokens(self) -> int: ...

    @property
    def num_reasoning_tokens(self) -> int: ...

    @property
    def queued_s(self) -> float: ...


@dataclass(slots=True)
class RequestRecord:
    """Made where the request comes in, current in every task it starts."""

    request_id: str = ""
    route: str = OTHER
    state: Mapping[str, Any] = field(default_factory=dict)  # of the ASGI scope
    trace_id: str = ""  # 32 hex digits; empty: nobody traces
    span_id: str = ""  # 16 hex digits: the caller's, or ours when we trace
    is_sampled: bool = False
    tracestate: str = ""  # handed on as it came
    generation: Counted | None = None  # once there is one
    error_code: str | None = None  # of the error that was answered
    has_content: bool = False  # whether prompts and answers go into the trace
    span: Any = None  # OpenTelemetry's, while the request is traced
    notes: list[tuple[str, float, float]] = field(default_factory=list)  # see note()

    @property
    def tenant_id(self) -> str:
        """Empty while nobody is known to ask."""
        principal = self.state.get("principal")
        return str(principal.tenant_id or principal.id) if principal is not None else ""

    @property
    def ids(self) -> dict[str, str]:
        """What every log line of the request bears."""
        ids = {"request_id": self.request_id, "trace_id": self.trace_id, "span_id": self.span_id}
        return {name: value for name, value in ids.items() if value}

    @property
    def usage(self) -> dict[str, object]:
        """Counts of the generation, if it has ended; never text."""
        done = self.generation
        if done is None or done.ended_at is None:
            return {}
        return {
            "outcome": done.outcome,
            "prompt_tokens": done.num_prompt_tokens,
            "cached_tokens": done.num_cached_tokens,
            "completion_tokens": done.num_completion_tokens,
            "reasoning_tokens": done.num_reasoning_tokens,
            "queue_ms": round(done.queued_s * 1000, 1),
        }

    @property
    def traceparent(self) -> str | None:
        """The W3C header for requests sent on behalf of this one."""
        if not self.trace_id:
            return None
        return f"00-{self.trace_id}-{self.span_id}-{'01' if self.is_sampled else '00'}"


def record_of(
    request_id: str, path: str, state: Mapping[str, Any], headers: Headers
) -> RequestRecord:
    """Take what an incoming request says of itself; a trace context that is not W3C's is none."""
    record = RequestRecord(request_id, route_of(path), state)
    parent = _TRACEPARENT.fullmatch(headers.get("traceparent", ""))
    if parent is not None and parent["version"] != "ff":
        record.trace_id, record.span_id = parent["trace"], parent["span"]
        record.is_sampled = bool(int(parent["flags"], 16) & 1)
        record.tracestate = headers.get("tracestate", "")[:_MAX_STATE_CHARS]
    return record


_current: ContextVar[RequestRecord | None] = ContextVar("request_record", default=None)


def current() -> RequestRecord | None:
    """The request that the running task belongs to, if any."""
    return _current.get()


def outgoing() -> dict[str, str]:
    """Headers for a request sent on behalf of the one at hand: its W3C trace context."""
    record = current()
    if record is None or record.traceparent is None:
        return {}
    state = {"tracestate": record.tracestate} if record.tracestate else {}
    return {"traceparent": record.traceparent, **state}


@contextmanager
def note(name: str) -> Iterator[None]:
    """Remember when the block began and ended, for a span of the request."""
    record, start = current(), perf_counter()
    try:
        yield
    finally:
        if record is not None:
            record.notes.append((name, start, perf_counter()))


def enter(record: RequestRecord) -> None:
    """Make it current for the running task and those it starts."""
    _current.set(record)


def route_of(path: str) -> str:
    """A route's template for a path; `other` for paths that are not ours, which are without end."""
    if path in _ROUTES:
        return path
    for start, template in _BELOW.items():
        if path.startswith(start):
            return template + next((end for end in _ENDS if path.endswith(end)), "")
    return OTHER
