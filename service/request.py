"""What is known of a request: made where it comes in, frozen, and handed from call to call."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Final, Protocol, TypeVar

from auth import audit
from auth.base import Forbidden, Principal
from service.errors import RequestError

CONTEXT: Final = "harmonium.context"  # the key of a RequestContext in an ASGI scope


TIMEOUT_HEADER = "X-Request-Timeout-Ms"
METRICS_HEADER = "X-Include-Metrics"

R = TypeVar("R")

OTHER: Final = "other"  # the route of what is not ours
_MAX_STATE_CHARS: Final = 512  # what W3C asks everyone to hand on
_TRACEPARENT: Final = re.compile(
    r"(?P<version>[0-9a-f]{2})-(?P<trace>(?!0{32})[0-9a-f]{32})-(?P<span>(?!0{16})[0-9a-f]{16})"
    r"-(?P<flags>[0-9a-f]{2})(?:-.*)?"
)


@dataclass(frozen=True, slots=True)
class Deadline:
    """When a request must have ended, on the running loop's clock."""

    at: float
    timeout_s: float  # what it was counted from, for the message
    is_callers: bool = False  # not the server's limit

    def check(self) -> None:
        """Raise the error that ends the request once the time is up."""
        if asyncio.get_running_loop().time() >= self.at:
            raise self.error()

    def error(self) -> RequestError:
        return RequestError(
            f"The answer was not complete within this request's limit of {self.timeout_s:g} s; "
            f"raise {TIMEOUT_HEADER} or NIM_REQUEST_TIMEOUT_S, or ask for fewer tokens.",
            status=504,
            type="timeout_error",
            code="deadline_exceeded",
        )


async def in_time(deadline: Deadline | None, awaited: Awaitable[R]) -> R:
    """Await something until the deadline; raises the deadline's error when it comes too late."""
    if deadline is None:
        return await awaited
    try:
        async with asyncio.timeout_at(deadline.at):
            return await awaited
    except TimeoutError:
        raise deadline.error() from None


def until(deadline: Deadline | None, events: AsyncGenerator[R, None]) -> AsyncGenerator[R, None]:
    """The same events, up to the deadline, whose error is raised then."""
    return events if deadline is None else _until(deadline, events)


async def _until(deadline: Deadline, events: AsyncGenerator[R, None]) -> AsyncGenerator[R, None]:
    async with aclosing(events):
        while True:
            deadline.check()  # also when events are always there and nothing waits
            try:
                async with asyncio.timeout_at(deadline.at):
                    event = await anext(events)
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise deadline.error() from None
            yield event


@dataclass(frozen=True, slots=True)
class Trace:
    """W3C's trace context, the caller's or ours; empty without tracing.

    https://www.w3.org/TR/trace-context/
    """

    trace_id: str = ""  # 32 hex digits
    span_id: str = ""  # 16 hex digits: the caller's, or ours
    is_sampled: bool = False
    state: str = ""  # handed on as it came
    span: Any = None  # OpenTelemetry's, while we trace
    has_content: bool = False  # whether prompts and answers go into the trace

    @property
    def headers(self) -> dict[str, str]:
        """The headers that make a request sent on behalf of this one part of the same trace."""
        if not self.trace_id:
            return {}
        parent = f"00-{self.trace_id}-{self.span_id}-{'01' if self.is_sampled else '00'}"
        return {"traceparent": parent, **({"tracestate": self.state} if self.state else {})}


NO_TRACE: Final = Trace()


def trace_of(headers: Mapping[str, str]) -> Trace:
    """The trace that an incoming request is part of; none where its header is not W3C's."""
    parent = _TRACEPARENT.fullmatch(headers.get("traceparent", ""))
    if parent is None or parent["version"] == "ff":
        return NO_TRACE
    is_sampled = bool(int(parent["flags"], 16) & 1)
    state = headers.get("tracestate", "")[:_MAX_STATE_CHARS]
    return Trace(parent["trace"], parent["span"], is_sampled, state)


class Counted(Protocol):
    """What telemetry reads of a generation; service/answer/generation.py has it."""

    ended_at: float | None

    @property
    def outcome(self) -> str:
        """`success`, `failure` or `abort`."""

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompts and of what built-in tools added to them."""

    @property
    def num_cached_tokens(self) -> int:
        """Of these, tokens found in the prefix cache."""

    @property
    def num_completion_tokens(self) -> int:
        """Generated tokens of all choices."""

    @property
    def num_reasoning_tokens(self) -> int:
        """Of these, tokens of the chain of thought."""

    @property
    def queued_s(self) -> float:
        """The longest wait of a choice in the engine's queue, in seconds."""


@dataclass(slots=True)
class Notes:
    """What telemetry learns of a request while it is served: for headers, log line, series, spans.

    It is only ever added to, and read when the request has ended: nothing is decided by it.
    """

    headers: dict[str, str] = field(default_factory=dict)  # of the answer
    error_code: str | None = None  # of the error that was answered, in a stream too
    error_status: int = 0
    is_quiet: bool = False  # its lines are for debugging alone
    not_enforced: str = ""  # keywords of the request's schemas
    num_unread: int = 0  # parts of the prompt in whose place stands a line
    generation: Counted | None = None  # once there is one
    phases: list[tuple[str, float, float]] = field(default_factory=list)  # name, begin, end
    for_engine: dict[str, str] = field(default_factory=dict)  # by part: what its half there gets

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Note when the block began and ended, for a span of the request."""
        start = perf_counter()
        try:
            yield
        finally:
            self.phases.append((name, start, perf_counter()))

    @property
    def summary(self) -> str:
        """The counts that the access log adds to its line; never text."""
        counts = summary_of(self.generation) if self.generation else ""
        return f"{counts}, not enforced: {self.not_enforced}" if self.not_enforced else counts

    @property
    def usage(self) -> dict[str, object]:
        """The counts of the generation, if it has ended; never text."""
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


def summary_of(done: Counted) -> str:
    return (
        f", {done.num_prompt_tokens} prompt tokens ({done.num_cached_tokens} cached), "
        f"{done.num_completion_tokens} generated, {done.outcome}"
    )


@dataclass(frozen=True, slots=True, eq=False)
class RequestContext:
    """One request as all layers know it: who asks, which route, until when, under which trace."""

    id: str = ""
    route: str = OTHER  # the template of its path
    principal: Principal | None = None  # None: the API is open, or the caller is not known yet
    deadline: Deadline | None = None
    trace: Trace = NO_TRACE
    notes: Notes = field(default_factory=Notes)
    is_detached: bool = False  # no client waits for it: all others come first, and it waits long
    shows_metrics: bool = False  # in the body of its answer

    @property
    def tenant(self) -> str:
        """Whose share of the engine and whose stored responses these are: the tenant's id.

        Without a tenant the principal's own id, so that a key of a tenant may be rotated; empty
        while the caller is not known.
        """
        principal = self.principal
        return principal.tenant_id or principal.id if principal else ""

    @property
    def cache_salt(self) -> str:
        """The salt under which prompts share the prefix cache: the tenant's id, empty for the
        common one."""
        return self.principal.tenant_id if self.principal else ""

    def may_use(self, names: Sequence[str]) -> bool:
        """Whether the caller may use the model of these names: one of them must be on the list."""
        allowed = None if self.principal is None else self.principal.models
        return allowed is None or any(name in allowed for name in names)

    def check_may_use(self, names: Sequence[str]) -> None:
        """Raise Forbidden unless the caller may use the model of these names."""
        if not self.may_use(names):
            id = self.principal.id if self.principal else ""
            level = logging.WARNING
            audit.write("auth.denied", level=level, caller=id, reason="model", model=names[0])
            raise Forbidden("a model that is not on the caller's list")

    @property
    def log_ids(self) -> dict[str, str]:
        trace = self.trace
        ids = {"request_id": self.id, "trace_id": trace.trace_id, "span_id": trace.span_id}
        return {name: value for name, value in ids.items() if value}


# For log lines alone, which come from anywhere; all else is handed the context.
_logged: ContextVar[RequestContext | None] = ContextVar("logged_request", default=None)


def log_lines_of() -> RequestContext | None:
    """The request that the running task's log lines belong to, if any."""
    return _logged.get()


def enter_log(context: RequestContext) -> None:
    """Let the log lines of the running task, and of those it starts, belong to this request."""
    _logged.set(context)
