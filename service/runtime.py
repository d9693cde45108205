"""Everything a request needs, wired once at start-up, and how handlers ask for it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from ssl import SSLContext
from typing import Annotated, Protocol, TypeVar

from fastapi import Depends, Request

from auth.base import Authenticator
from engines.base import Adapter, Engine
from service.admission.gate import Gate
from service.admission.lifecycle import Lifecycle
from service.answer.running import RunningAnswers
from service.chat_format import ChatFormat
from service.compaction import Compactor
from service.jobs.worker import Jobs, jobs_on
from service.request import CONTEXT, RequestContext
from service.store.sqlite import Database, SqliteDatabase
from service.telemetry.hooks import Telemetry
from service.telemetry.metrics import Metrics
from service.tools import Toolbox

T = TypeVar("T")


def _new_id() -> str:
    return uuid.uuid4().hex


def _jobs() -> Jobs:
    return jobs_on(SqliteDatabase())


@dataclass(frozen=True, slots=True)
class ServedProfile:
    """What was chosen to run, and why, in words for a person."""

    name: str
    engine: str
    precision: str
    goal: str
    hardware: str  # the board or generation it is for, or `cpu`
    num_devices: int
    replicas: int
    max_model_len: int  # on this machine
    status: str  # how far its values can be trusted
    source: str  # where they come from, measured speeds included
    reason: str  # why it, of all
    notes: tuple[str, ...] = ()  # what this machine could do besides


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model as clients know it."""

    id: str  # its first name, which answers have
    root: str  # the model's own name
    profile_id: str
    created: int  # seconds since 1970: when serving began
    more_names: tuple[str, ...] = ()  # that requests may use, too
    aliases: tuple[str, ...] = ()  # the same, and not listed
    description: str = ""
    license: str | None = None  # of the weights, by its SPDX name, where it is known
    profile: ServedProfile | None = None
    temperature: float = 1.0  # of requests that give none
    format: str = "harmony"  # how its conversations are written; Runtime.format has it
    assets: tuple[str, ...] = ()  # files that are served: where from, and SHA-256
    repository_override: str = ""
    adapter: Adapter | None = None  # that requests are computed with
    parent: str | None = None  # of an adapter: the model that it changes

    @property
    def listed(self) -> tuple[str, ...]:
        """The names under which clients find it."""
        return (self.id, *self.more_names)

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that requests, and the lists of keys, may have for it."""
        return (*self.listed, *self.aliases)


class Adapters(Protocol):
    """What is served beside the model, under names of its own."""

    def get(self, name: str) -> Adapter | None:
        """The adapter of this name; never waits for a disk of another machine."""

    def all(self) -> Sequence[Adapter]:
        """Those that are served now, by name."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """The operator's bounds for one API process."""

    max_body_bytes: int = 10 * 1024 * 1024
    sse_keepalive_s: float = 15.0
    max_connections: int = 4096  # of each API worker
    max_connections_per_address: int | None = None  # the same; None: no bound
    slow_reader_timeout_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Runtime:
    """All that handlers need, made once at start-up; clock and ids can be fixed for tests."""

    engine: Engine
    model: ServedModel
    format: ChatFormat  # of the model
    metrics: Metrics
    lifecycle: Lifecycle
    telemetry: Telemetry = field(default_factory=Telemetry)
    limits: ServerLimits = ServerLimits()
    gate: Gate = field(default_factory=Gate)
    authenticator: Authenticator | None = None
    is_local: bool = False  # open, but to this machine alone
    read_without_key: tuple[str, ...] = ()  # of service.http.paths.READS
    cors_origins: tuple[str, ...] = ()  # the web pages that may read answers; "*": all
    tls: SSLContext | None = None  # None: plain HTTP
    toolbox: Toolbox | None = None  # built-in tools, if any is connected
    adapters: Adapters | None = None  # of the part that has them
    compactor: Compactor | None = None  # of the part that summarizes conversations
    kill_engine: Callable[[], int] | None = None  # where the operator allows it
    database: Database = field(default_factory=SqliteDatabase)  # in memory
    jobs: Jobs = field(default_factory=_jobs)
    answers: RunningAnswers = field(default_factory=RunningAnswers)
    shared_folder: Path | None = None  # of all API workers; None: this is the only one
    clock: Callable[[], float] = field(default=time.time)
    new_id: Callable[[], str] = field(default=_new_id)  # hexadecimal, never the same twice
    parts: tuple[object, ...] = ()  # what the parts' serving.py have for their own requests

    def of(self, kind: type[T]) -> T | None:
        """What a part has put into `parts`, by its class."""
        return next((part for part in self.parts if isinstance(part, kind)), None)

    def with_adapter(self, adapter: Adapter) -> Runtime:
        """The same for requests to an adapter."""
        model = replace(
            self.model,
            id=adapter.name,
            more_names=(),
            aliases=(),
            adapter=adapter,
            parent=self.model.id,
        )
        return replace(self, model=model)

    @property
    def compared_origins(self) -> tuple[str, ...]:
        """The servers that the playground may ask, too."""
        return tuple(origin for origin in self.cors_origins if origin != "*")


# async, so that they run here: FastAPI sends plain functions to a thread.
async def _runtime(request: Request) -> Runtime:
    runtime: Runtime = request.app.state.runtime
    return runtime


async def _context(request: Request) -> RequestContext:
    context: RequestContext = request.scope[CONTEXT]
    return context


CurrentRuntime = Annotated[Runtime, Depends(_runtime)]
CurrentContext = Annotated[RequestContext, Depends(_context)]
