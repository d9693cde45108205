"""The API workers of one server: started, told of the engine, replaced when they die, drained."""

from __future__ import annotations

import asyncio
import secrets
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from engines.process.child import Command
from engines.process.supervisor import ChildSupervisor, RestartPolicy
from service.run.messages import ApiWorkerSpec, EngineNews
from service.run.stop_signal import StopSignal, first_of
from service.settings.settings import worker_environment
from service.shared_files import SharedFiles

END_S: Final = 10.0  # beyond the drain's grace: for a worker to close its connections and go
# No request may hold its loop for a tenth of a second. Shorter than a usual liveness probe bears
# with: what is replaced is the worker, not the whole container with its loaded model.
HANG_TIMEOUT_S: Final = 20.0


class WorkerPool:
    """Keeps `size` workers running on one listener and one engine.

    Each one's first start must succeed; after it every death is followed by a restart with
    back-off, for ever, while the others keep running.
    """

    def __init__(self, spec: ApiWorkerSpec, size: int, news: Callable[[], EngineNews]) -> None:
        """`spec`: of the first worker; the others differ in their number.

        Raises OSError where there is no room for the files that they share.
        """
        self._news = news
        folder = spec.shared_folder
        num_engines = len(spec.engine_addresses)
        self._shared = None if folder is None else SharedFiles(folder, size, num_engines)
        self._hash_seed = str(secrets.randbelow(1 << 32))  # the workers' hashes are the same
        policy = RestartPolicy(hang_timeout_s=HANG_TIMEOUT_S)
        self._supervisors = [self._supervisor(replace(spec, number=n), policy) for n in range(size)]

    async def start(self) -> None:
        """Return when all workers serve; raises ChildError in the words of one that cannot."""
        async with asyncio.TaskGroup() as group:
            for supervisor in self._supervisors:
                group.create_task(supervisor.start())

    def tell(self) -> None:
        news = self._news().to_line()
        for supervisor in self._supervisors:
            supervisor.tell(news)

    def signal(self, number: signal.Signals) -> None:
        for supervisor in self._supervisors:
            supervisor.signal(number)

    async def drain(self, stop: StopSignal, grace_s: float) -> None:
        """Let every worker finish its requests; the rest ends with an error after the grace
        period."""
        ending = asyncio.ensure_future(self._stop(grace_s + END_S))
        if await first_of(stop.forced, ending):
            self.signal(signal.SIGTERM)
            await asyncio.wait((ending,), timeout=END_S)
        ending.cancel()
        await asyncio.wait((ending,))

    async def kill(self) -> None:
        """Kill the workers that are left; may be called twice."""
        self.signal(signal.SIGKILL)
        await self._stop(0.0)
        if self._shared is not None:
            self._shared.close()

    async def _stop(self, patience_s: float) -> None:
        async with asyncio.TaskGroup() as group:
            for supervisor in self._supervisors:
                group.create_task(supervisor.stop(patience_s, 0.0))

    def _supervisor(self, spec: ApiWorkerSpec, policy: RestartPolicy) -> ChildSupervisor:
        name = f"API worker {spec.number}"

        return ChildSupervisor(name, partial(self._command, name, spec), policy)

    def _command(self, name: str, spec: ApiWorkerSpec) -> Command:
        return Command(
            name=name,
            arguments=("-m", "service.run.worker"),
            first_words=lambda: self._first_words(spec),
            environment={
                **worker_environment(spec.shared_folder),
                "PYTHONHASHSEED": self._hash_seed,
            },
            pass_fds=(spec.listener_fd, *(self._shared.descriptors if self._shared else ())),
        )

    def _first_words(self, spec: ApiWorkerSpec) -> bytes:
        news = self._news()
        return replace(spec, is_successor=news.ready_at is not None).to_bytes() + news.to_line()
