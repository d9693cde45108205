"""Where the service is between start and stop; readiness and admission follow from it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

from engines.base import Engine
from engines.errors import EngineDead, EngineError


class Phase(StrEnum):
    """The phases of the service, from start to stop."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"


class NotReady(Exception):
    """The service cannot take a request now; the message says why."""


class Lifecycle:
    """The phase of the service, and the number of running requests; one per process."""

    def __init__(self) -> None:
        self.phase = Phase.STARTING
        self.num_running = 0
        self.waits_for = ""  # what has to be done before the engine can be started
        self.is_draining = asyncio.Event()  # for what waits: set with the phase
        self._idle = asyncio.Event()
        self._idle.set()

    def mark_ready(self) -> None:
        """Take requests from now on: the engine has started."""
        if self.phase is Phase.STARTING:
            self.phase = Phase.READY

    def check_started(self) -> None:
        """Raise NotReady until the engine has started once."""
        if self.phase is Phase.STARTING:
            doing = self.waits_for or "the engine is still loading"
            raise NotReady(f"The server is starting: {doing}. Try again later.")

    def check_accepting(self) -> None:
        """Raise NotReady unless new requests are taken now."""
        self.check_started()
        if self.phase is Phase.DRAINING:
            raise NotReady("The server is shutting down; send the request to another server.")

    async def check_ready(self, engine: Engine, timeout_s: float = 2.0) -> None:
        """Raise NotReady with the reason unless a request would be served now."""
        self.check_accepting()
        try:
            async with asyncio.timeout(timeout_s):
                await engine.check_health()
        except TimeoutError:
            reason = f"The engine did not respond to a health check within {timeout_s:g} s."
            raise NotReady(reason) from None
        except EngineDead as error:
            raise NotReady(f"The engine is not running: {error}.") from error
        except EngineError as error:
            raise NotReady(f"The engine is not ready: {error}.") from error

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count one request inside the block; raises NotReady when none is taken."""
        self.check_accepting()
        self.num_running += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.num_running -= 1
            if not self.num_running:
                self._idle.set()

    async def drain(self, grace_s: float) -> bool:
        """Take no more requests; true when the running ones ended within the grace."""
        self.phase = Phase.DRAINING
        self.is_draining.set()
        try:
            async with asyncio.timeout(grace_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True
