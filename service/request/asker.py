"""What limits need to know of a request: whose it is, since when, and how long it may take."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from contextvars import ContextVar
from dataclasses import dataclass, field

from auth.base import Principal
from service.request import caller


@dataclass(frozen=True, slots=True)
class Asker:
    """What limits need to know of a request beside its plan."""

    timeout_s: float | None = None
    headers: MutableMapping[str, str] = field(default_factory=dict)  # its answer gets these
    arrived_at: float = field(default_factory=lambda: asyncio.get_running_loop().time())

    @property
    def principal(self) -> Principal | None:
        """None while the API is open."""
        return caller.current()

    @property
    def tenant(self) -> str:
        """Whose share of the engine it takes: the tenant's, else the principal's own."""
        principal = self.principal
        return principal.tenant_id or principal.id if principal else ""


_current: ContextVar[Asker] = ContextVar("asker")


def current() -> Asker:
    """Of the running task's request."""
    return _current.get()


def enter(asker: Asker) -> None:
    """Make it current for the running task and those it starts."""
    _current.set(asker)
