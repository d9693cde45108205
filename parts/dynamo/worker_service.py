"""`harmonium dynamo-worker`: the parent of engine processes that serve as workers of Dynamo."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from pathlib import Path

from engines.factory import about
from engines.process.supervisor import EngineSupervisor, RestartPolicy
from parts.dynamo.front import ENGINE
from parts.dynamo.handover.spec import KvHandover
from parts.dynamo.network.runtime import DEFAULT_ENDPOINT
from parts.dynamo.network.supervisor import WorkerSupervisor
from parts.dynamo.settings import DynamoSettings
from service.run.launching import replica_spec
from service.run.obtaining import Obtaining
from service.run.pythons import python_of
from service.run.startup import Launch, environments_of, obtain
from service.run.stop_signal import StopSignal, first_of
from service.run.termination import FORCED
from service.settings.settings import Settings, engine_environment

log = logging.getLogger("harmonium")


class WorkerService:
    """One run: each replica of the profile is a worker of the deployment."""

    def __init__(self, settings: Settings, launch: Launch) -> None:
        self._settings = settings
        self._launch = launch
        own = settings.of(DynamoSettings)
        self._endpoint = own.dynamo_endpoint or DEFAULT_ENDPOINT
        policy = RestartPolicy(step_timeout_s=settings.engine_step_timeout_s)
        python: Path | None = python_of(settings, ENGINE)
        specs = [
            replica_spec(launch.spec, settings, number) for number in range(len(launch.devices))
        ]
        self._workers = [
            WorkerSupervisor(
                EngineSupervisor(
                    spec, policy, environment, python=python_of(settings, spec.engine)
                ),
                self._endpoint,
                own.dynamo_discovery,
                handover=KvHandover.of(spec),
                environment=engine_environment(about(ENGINE).environment),
                python=python,
            )
            for spec, environment in zip(specs, environments_of(launch), strict=True)
        ]

    async def run(self) -> int:
        """Serve until a signal comes; running answers end first, for as long as a server's do."""
        stop = StopSignal()
        starting = asyncio.create_task(self._start())
        try:
            if not await first_of(stop.requested, starting):
                await starting
                log.info(
                    "Ready: %s is served to Dynamo at %s (workers: %d)",
                    self._launch.served_name,
                    self._endpoint,
                    len(self._workers),
                )
                await stop.requested.wait()
            await self._end(stop)
        finally:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            await asyncio.gather(*(worker.stop(0.0) for worker in self._workers))
        log.info("Stopped.")
        return FORCED if stop.forced.is_set() else 0

    async def _start(self) -> None:
        launch = self._launch
        if launch.to_fetch:
            fetch = partial(obtain, self._settings, launch)
            await Obtaining(fetch, launch.served_name, str(launch.model_dir)).run(lambda: None)
        for worker in self._workers:
            await worker.start()

    async def _end(self, stop: StopSignal) -> None:
        """A second signal ends it at once."""
        grace_s = self._settings.drain_grace_s
        ending = asyncio.gather(*(worker.stop(grace_s) for worker in self._workers))
        if await first_of(stop.forced, ending):
            ending.cancel()
        await asyncio.gather(ending, return_exceptions=True)
