"""The API server in this process: the application under uvicorn, and how it drains."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterator

import uvicorn

from service.api.responses.background import end_background
from service.http.protocol import bounded_protocol
from service.run.accept import Acceptor, Shares
from service.run.app import create_app
from service.run.stop_signal import StopSignal, first_of
from service.runtime import Runtime

log = logging.getLogger("harmonium")

_CLOSE_TIMEOUT_S = 2  # for connections to take their last bytes


class ApiServer:
    """Listens from the beginning; says it is ready only once the engine is."""

    def __init__(self, runtime: Runtime, shares: Shares | None = None) -> None:
        """`shares`: what the workers that have the same listener say of their connections."""
        self._runtime = runtime
        self._shares = shares
        config = uvicorn.Config(
            create_app(runtime),
            http=bounded_protocol(
                runtime.limits.max_connections, runtime.limits.max_connections_per_address
            ),
            log_config=None,
            access_log=False,
            server_header=False,
            ws="none",
            lifespan="off",
            timeout_graceful_shutdown=_CLOSE_TIMEOUT_S,
        )
        config.load()
        config.ssl = runtime.tls
        self._uvicorn = _Uvicorn(config)

    @contextlib.asynccontextmanager
    async def listening(self, listener: socket.socket) -> AsyncIterator[None]:
        """Serve HTTP inside the block; leaving it closes the connections."""
        self._runtime.telemetry.start(self._runtime.engine)
        own = [] if self._shares else [listener]
        serving = asyncio.create_task(self._uvicorn.serve(sockets=own))
        acceptor = await self._accept(listener, self._shares) if self._shares else None
        try:
            yield
        finally:
            if acceptor is not None:
                acceptor.close()
            self._uvicorn.should_exit = True
            await serving
            await end_background(self._runtime, _CLOSE_TIMEOUT_S)
            await self._runtime.gate.close()
            await self._runtime.responses.close()
            await self._runtime.telemetry.close()

    async def _accept(self, listener: socket.socket, shares: Shares) -> Acceptor:
        await self._uvicorn.is_started.wait()
        connections = self._uvicorn.server_state.connections
        return Acceptor(
            listener,
            self._uvicorn.protocol,
            self._runtime.tls,
            shares,
            lambda: len(connections),
        )

    async def run(
        self,
        listener: socket.socket,
        stop: StopSignal,
        starting: asyncio.Future[None],
        *,
        on_ready: Callable[[], None],
        grace_s: float,
    ) -> None:
        """Serve until a signal comes, then drain; raises what `starting` the engine raises."""
        async with self.listening(listener):
            if await first_of(stop.requested, starting):
                return
            await starting
            # All that start-up made stays: without this, each full collection walks through it
            # and every stream pauses for about 50 ms.
            gc.freeze()
            self._runtime.lifecycle.mark_ready()
            on_ready()
            await stop.requested.wait()
            await self.drain(stop, grace_s)

    async def drain(self, stop: StopSignal, grace_s: float) -> None:
        """Refuse what comes, wait for what runs; what outlives the grace ends with an error."""
        lifecycle = self._runtime.lifecycle
        log.info("Stopping; running requests: %d.", lifecycle.num_running)
        draining = asyncio.create_task(lifecycle.drain(grace_s))
        if await first_of(stop.forced, draining):
            draining.cancel()
            self._uvicorn.force_exit = True
        elif not draining.result():
            log.warning(
                "Requests that did not end in %g s and get an error: %d.",
                grace_s,
                lifecycle.num_running,
            )
        await self._runtime.engine.stop()


class _Uvicorn(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_started = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        await self.on_tick(0)  # the headers of every answer
        self.is_started.set()

    def protocol(self) -> asyncio.Protocol:
        """For a connection that was accepted elsewhere."""
        made: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        return made

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are StopSignal's."""
        yield
