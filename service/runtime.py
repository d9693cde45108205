"""Everything a request needs, wired once at start-up."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from ssl import SSLContext
from typing import TYPE_CHECKING

from auth.base import Authenticator
from engines.base import Engine
from service.lifecycle import Lifecycle
from service.limits.gate import Gate
from service.mcp.toolbox import Toolbox
from service.responses.store import ResponseStore
from service.responses.store_sqlite import SqliteStore
from service.telemetry.metrics import Metrics
from service.telemetry.tracing import Telemetry

if TYPE_CHECKING:
    from service.responses.background import BackgroundRun


def _new_id() -> str:
    return uuid.uuid4().hex


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model as clients know it."""

    id: str
    root: str  # the model's own name
    profile_id: str
    created: int  # seconds since 1970: when serving began


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds the operator sets."""

    max_body_bytes: int = 10 * 1024 * 1024
    sse_keepalive_s: float = 15.0
    max_connections: int = 4096  # of each API worker


@dataclass(frozen=True, slots=True)
class Runtime:
    """The engine and what surrounds it; clock and ids can be fixed for tests."""

    engine: Engine
    model: ServedModel
    metrics: Metrics
    lifecycle: Lifecycle
    telemetry: Telemetry = field(default_factory=Telemetry)
    limits: Limits = Limits()
    gate: Gate = field(default_factory=Gate)
    authenticator: Authenticator | None = None
    is_local: bool = False  # open, but to this machine alone
    cors_origins: tuple[str, ...] = ()  # the web pages that may read answers; "*": all
    tls: SSLContext | None = None  # None: plain HTTP
    toolbox: Toolbox | None = None  # built-in tools, if any is connected
    responses: ResponseStore = field(default_factory=SqliteStore)  # in memory
    background: dict[str, BackgroundRun] = field(default_factory=dict)  # by response id
    clock: Callable[[], float] = field(default=time.time)
    new_id: Callable[[], str] = field(default=_new_id)  # hexadecimal, never the same twice
