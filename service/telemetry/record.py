"""What telemetry knows of the HTTP request at hand, wherever in the code it is asked."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

OTHER = "other"
_BELOW = {"/v1/responses/": "/v1/responses/{response_id}", "/v1/models/": "/v1/models/{model_id}"}
_ENDS = ("/cancel", "/input_items")
_ROUTES = frozenset(
    (
        "/v1/chat/completions",
        "/v1/chat/completions/render",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/models",
        "/v1/health/live",
        "/v1/health/ready",
        "/v1/version",
        "/v1/metadata",
        "/v1/metrics",
        "/metrics",
        "/tokenize",
        "/detokenize",
    )
)


@dataclass(slots=True)
class RequestRecord:
    """Made where the request comes in, current in every task it starts."""

    request_id: str = ""
    route: str = OTHER
    state: Mapping[str, Any] = field(default_factory=dict)  # of the ASGI scope

    @property
    def tenant_id(self) -> str:
        """Empty while nobody is known to ask."""
        principal = self.state.get("principal")
        return str(principal.tenant_id or principal.id) if principal is not None else ""


_current: ContextVar[RequestRecord | None] = ContextVar("request_record", default=None)


def current() -> RequestRecord | None:
    """The request that the running task belongs to, if any."""
    return _current.get()


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
