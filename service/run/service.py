"""`harmonium serve`: the parent that owns the API workers, their engine and their port."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from engines.live_folder import LiveFolder
from engines.process.supervisor import EngineSupervisor, RestartPolicy
from service.run.database import database_of
from service.run.launching import replica_spec
from service.run.messages import ApiWorkerSpec, EngineNews
from service.run.obtaining import Obtaining
from service.run.pool import WorkerPool
from service.run.pythons import python_of
from service.run.startup import Launch, environments_of, obtain
from service.run.stop_signal import StopSignal, first_of
from service.run.termination import FORCED
from service.settings.settings import Settings

log = logging.getLogger("harmonium")

_ENGINE_GRACE_S: Final = 5.0


class SharedService:
    """One run of `harmonium serve`: engine processes, API workers and what ends them."""

    def __init__(
        self, settings: Settings, launch: Launch, listener: socket.socket, *, is_brief: bool = False
    ) -> None:
        self._settings = settings
        self._stop = StopSignal()
        self._began_at = time.time()
        self._ready_at: float | None = None
        policy = RestartPolicy(step_timeout_s=settings.engine_step_timeout_s)
        self._supervisors = [
            EngineSupervisor(
                replica_spec(launch.spec, settings, number),
                policy,
                environment,
                self._tell_workers,
                python_of(settings, launch.spec.engine),
            )
            for number, environment in enumerate(environments_of(launch))
        ]
        self._obtaining = Obtaining(
            partial(obtain, settings, launch), launch.served_name, str(launch.model_dir)
        )
        self._must_obtain = bool(launch.to_fetch)
        num_workers = settings.api_workers or 1
        self._folder = LiveFolder() if num_workers > 1 else None
        if self._folder is not None:
            self._folder.make()
        first = ApiWorkerSpec(
            number=0,
            settings=settings,
            launch=launch,
            engine_addresses=tuple(supervisor.address for supervisor in self._supervisors),
            listener_fd=listener.fileno(),
            shared_folder=None if self._folder is None else self._folder.path,
            is_brief=is_brief,
        )
        self._pool = WorkerPool(first, num_workers, self._news)

    @property
    def step(self) -> str:
        if download := self._obtaining.download:
            return download.text
        return next((each.step for each in self._supervisors if each.step), "starting the engine")

    async def run(self, on_ready: Callable[[], None], on_stopping: Callable[[], None]) -> int:
        """Serve until a signal comes; always cleans up."""
        starting = asyncio.create_task(self._start())
        asyncio.get_running_loop().add_signal_handler(signal.SIGTSTP, self._suspend)
        try:
            if not await first_of(self._stop.requested, starting):
                await starting
                on_ready()
                await self._stop.requested.wait()
            on_stopping()
            await self._pool.drain(self._stop, self._settings.drain_grace_s)
        finally:
            starting.cancel()
            # An interrupted start may fail because of that; the failure is not reported.
            await asyncio.gather(starting, return_exceptions=True)
            # The workers before their engine: no request is to see it die.
            await self._pool.kill()
            grace_s = 0.0 if self._stop.forced.is_set() else _ENGINE_GRACE_S
            for supervisor in self._supervisors:
                await supervisor.stop(drain_timeout_s=grace_s, grace_s=grace_s)
            if self._folder is not None:
                self._folder.remove()
        log.info("Stopped.")
        return FORCED if self._stop.forced.is_set() else 0

    async def _start(self) -> None:
        """Return when all serve; raises the first error of the store, a worker or the engine."""
        # Before the workers, which would make the file's tables all at once.
        await database_of(self._settings).close()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._start_engines())
                group.create_task(self._pool.start())
        except BaseExceptionGroup as group_error:
            raise _first(group_error) from None

    async def _start_engines(self) -> None:
        if self._must_obtain:
            await self._obtaining.run(self._tell_workers)
        async with asyncio.TaskGroup() as group:
            for supervisor in self._supervisors:
                group.create_task(supervisor.start())
        self._ready_at = time.time()
        self._tell_workers()

    def _suspend(self) -> None:
        """Ctrl-Z stops the workers too, which are out of its reach; `fg` continues all of them."""
        self._pool.signal(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        self._pool.signal(signal.SIGCONT)

    def _news(self) -> EngineNews:
        return EngineNews(
            tuple(supervisor.reason for supervisor in self._supervisors),
            sum(supervisor.num_restarts for supervisor in self._supervisors),
            self._obtaining.download,
            next((each.step for each in self._supervisors if each.step), ""),
            self._began_at,
            self._ready_at,
            tuple(supervisor.pid for supervisor in self._supervisors),
        )

    def _tell_workers(self) -> None:
        self._pool.tell()


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
