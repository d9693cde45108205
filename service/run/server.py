"""The API server in this process: the application, uvicorn that serves it, and how it drains."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import uvicorn

from engines.parts import facets
from engines.process.wire import SWITCH_INTERVAL_S
from service.api.about import health, models, nim, tokens
from service.api.chat import routes as chat
from service.http.answers import add_error_handlers
from service.http.authentication import Authentication
from service.http.middleware import Cors, NoForeignPages, RequestMiddleware
from service.http.paths import checked
from service.http.protocol import bounded_protocol
from service.http.streaming import expose_server_send
from service.jobs.base import JobKind, kind_name
from service.run.accept import Acceptor, Shares
from service.run.openapi import Application
from service.run.stop_signal import StopSignal, first_of
from service.run.wiring import ServingPart
from service.runtime import Runtime

log = logging.getLogger("harmonium")

_MOST_LATE_S: Final = 2.0  # after which a successor accepts connections that it cannot serve yet
_CLOSE_TIMEOUT_S = 2  # for connections to take their last bytes
# Longer than clients and load balancers keep an idle connection, or they send a request on one that
# is being closed: httpx 5 s, nginx and AWS load balancers 60 s.
_KEEP_ALIVE_S: Final = 75

_CORE: Final = (chat, tokens, models, health, nim)

# What a page may read of an answer beside its body.
_EXPOSED: Final = (
    "X-Request-Id",
    "Retry-After",
    "OpenAI-Processing-Ms",
    "WWW-Authenticate",
    *(
        f"x-ratelimit-{name}-{kind}"
        for name in ("limit", "remaining", "reset")
        for kind in ("requests", "tokens")
    ),
)


@dataclass(frozen=True, slots=True)
class MoreListeners:
    """In a Runtime: another port of the same server, which each worker opens for itself."""

    open: Callable[[], socket.socket]


class ApiServer:
    """One process's API server: listens from the beginning, is ready only once the engine is."""

    def __init__(self, runtime: Runtime, shares: Shares | None = None) -> None:
        """`shares`: the connection counts of the workers on the same listener."""
        self._runtime = runtime
        self._shares = shares
        self._acceptor: Acceptor | None = None
        self._is_successor = False
        app = create_app(runtime)
        config = uvicorn.Config(
            expose_server_send(app),
            http=bounded_protocol(
                runtime.limits.max_connections,
                runtime.limits.max_connections_per_address,
                runtime.limits.slow_reader_timeout_s,
                partial(runtime.metrics.count_slow_reader, "speed"),
                app.paths,
                runtime.limits.max_body_bytes,
            ),
            log_config=None,
            access_log=False,
            server_header=False,
            ws="none",
            lifespan="off",
            timeout_graceful_shutdown=_CLOSE_TIMEOUT_S,
            timeout_keep_alive=_KEEP_ALIVE_S,
        )
        config.load()
        config.ssl = runtime.tls
        self._uvicorn = _Uvicorn(config)

    @contextlib.asynccontextmanager
    async def listening(self, listener: socket.socket) -> AsyncIterator[None]:
        """Serve HTTP inside the block; leaving it closes the connections."""
        self._runtime.telemetry.start(self._runtime.engine)
        own = [] if self._shares else [listener]
        parts = self._runtime.parts
        own += [part.open() for part in parts if isinstance(part, MoreListeners)]
        serving = asyncio.create_task(self._uvicorn.serve(sockets=own))
        self._acceptor = await self._accept(listener, self._shares) if self._shares else None
        try:
            async with contextlib.AsyncExitStack() as running:
                for part in facets("serving", ServingPart).values():
                    await running.enter_async_context(part.running(self._runtime))
                yield
        finally:
            if self._acceptor is not None:
                self._acceptor.close()
            self._uvicorn.should_exit = True
            await serving
            await self._runtime.jobs.close(_CLOSE_TIMEOUT_S)
            await self._runtime.gate.close()
            await self._runtime.database.close()
            await self._runtime.telemetry.close()

    async def _accept(self, listener: socket.socket, shares: Shares) -> Acceptor:
        await self._uvicorn.is_started.wait()
        connections = self._uvicorn.server_state.connections
        acceptor = Acceptor(
            listener,
            self._uvicorn.protocol,
            self._runtime.tls,
            shares,
            lambda: len(connections),
            self._runtime.limits.max_connections,
        )
        if self._is_successor:
            acceptor.pause(_MOST_LATE_S)
        return acceptor

    async def run(
        self,
        listener: socket.socket,
        stop: StopSignal,
        starting: asyncio.Future[None],
        *,
        on_ready: Callable[[], None],
        is_successor: bool,
        grace_s: float,
    ) -> None:
        """Serve until a signal comes, then drain; raises what `starting` the engine raises.

        The successor of a worker leaves connections to the others until it can serve them.
        """
        self._is_successor = is_successor
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        async with self.listening(listener):
            if await first_of(stop.requested, starting):
                return
            await starting
            # All that start-up made stays: without this, each full collection walks through it
            # and every stream pauses for about 50 ms.
            gc.freeze()
            self._runtime.lifecycle.mark_ready()
            if self._acceptor is not None:
                self._acceptor.resume()
            self._runtime.jobs.start(self._room)
            on_ready()
            await stop.requested.wait()
            await self.drain(stop, grace_s)

    async def drain(self, stop: StopSignal, grace_s: float) -> None:
        """Refuse new requests and wait for the running ones; at the end of the grace they fail."""
        lifecycle = self._runtime.lifecycle
        log.info("Stopping; running requests: %d.", lifecycle.num_running)
        draining = asyncio.create_task(lifecycle.drain(grace_s))
        releasing = asyncio.create_task(self._runtime.jobs.release())
        if await first_of(stop.forced, draining):
            draining.cancel()
            self._uvicorn.force_exit = True
        elif not draining.result():
            log.warning(
                "Requests that did not finish in %g s and were ended with an error: %d.",
                grace_s,
                lifecycle.num_running,
            )
        await asyncio.wait((releasing,), timeout=_CLOSE_TIMEOUT_S)
        await self._runtime.engine.stop()

    def _room(self) -> int:
        """Jobs that run here at a time: as many as the engine has places for, and some more, so
        that no place is free until the next is claimed."""
        num_places = self._runtime.engine.info.max_num_seqs
        return num_places + max(num_places // 2, 1)


class _Uvicorn(uvicorn.Server):
    """uvicorn without its signal handlers, and with connections that were accepted elsewhere."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_started = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        await self.on_tick(0)  # the headers of every answer
        self.is_started.set()

    def protocol(self) -> asyncio.Protocol:
        """A protocol for a connection that was accepted elsewhere."""
        made: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return made

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to StopSignal."""
        yield


def jobs_of(runtime: Runtime) -> dict[str, JobKind]:
    """Every kind of job, by name: the core's and those of parts."""
    makers = facets("jobs", Mapping).values()
    model = runtime.model.root
    return {kind_name(name, model): make(runtime) for made in makers for name, make in made.items()}


def create_app(runtime: Runtime) -> Application:
    """The ASGI application that serves this runtime; the caller starts and stops the runtime."""
    parts = [routes for found in facets("routes", tuple).values() for routes in found]
    families = checked([*(family.ROUTES for family in _CORE), *parts])
    needs_key = runtime.authenticator is not None
    app = Application(families, needs_key=needs_key, model=runtime.model.id)
    app.state.runtime = runtime
    rows = [row for family in families for row in family.rows]
    runtime.metrics.expect(row.label for row in rows if row.is_generating)
    runtime.jobs.kinds, runtime.jobs.app = jobs_of(runtime), app
    add_error_handlers(app)
    authentication = None
    if runtime.authenticator is not None:
        authentication = Authentication(runtime.authenticator, runtime.metrics.count_auth_failure)
    own = NoForeignPages(runtime.cors_origins) if runtime.is_local else None
    app.add_middleware(
        RequestMiddleware,
        runtime=runtime,
        paths=app.paths,
        authentication=authentication,
        pages=own,
    )
    if runtime.cors_origins:
        id_headers = sorted({row.dialect.id_header for row in rows if row.dialect.id_header})
        # The last added is the outermost: a preflight has no key, and errors are answers too.
        app.add_middleware(
            Cors,
            allow_origins=runtime.cors_origins,
            allow_methods=("GET", "POST", "DELETE"),
            allow_headers=("*",),
            expose_headers=(*_EXPOSED, *id_headers),
        )
    return app
