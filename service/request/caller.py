"""Who asks, wherever in the code of a request it is needed."""

from __future__ import annotations

import logging
from contextvars import ContextVar

from auth import audit
from auth.base import Forbidden, Principal

_current: ContextVar[Principal | None] = ContextVar("principal", default=None)


def current() -> Principal | None:
    """The caller of the running task's request; None when the API is open."""
    return _current.get()


def enter(principal: Principal) -> None:
    """Make it current for the running task and those it starts."""
    _current.set(principal)


def tenant_id() -> str:
    """Whose prompts may share the prefix cache with this request's; empty: the common tenant."""
    principal = _current.get()
    return principal.tenant_id if principal else ""


def may_use(model: str) -> bool:
    """Whether the caller may use the model of this id."""
    principal = _current.get()
    return principal is None or principal.models is None or model in principal.models


def check_may_use(model: str) -> None:
    """Raise Forbidden unless the caller may use the model."""
    if not may_use(model):
        principal = _current.get()
        id = principal.id if principal else ""
        audit.write("auth.denied", level=logging.WARNING, caller=id, reason="model", model=model)
        raise Forbidden("a model that is not on the caller's list")
