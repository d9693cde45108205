"""The API workers of one server: started, told of the engine, replaced when they die, drained."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from engines.process.supervisor import RestartPolicy
from service.run.messages import EngineNews, WorkerSpec
from service.run.process import WorkerProcess
from service.run.stop_signal import StopSignal, first_of
from service.telemetry.shared import forget_live

log = logging.getLogger("harmonium")

END_S: Final = 10.0  # beyond the drain's grace: for a worker to close its connections and go


class WorkerPool:
    """Keeps `size` workers running on one listener and one engine.

    Each one's first start must succeed; after it every death is followed by a restart with
    back-off, for ever, while the others go on.
    """

    def __init__(self, spec: WorkerSpec, size: int, news: Callable[[], EngineNews]) -> None:
        """`spec`: of the first worker; the others differ in their number."""
        self._specs = [replace(spec, number=number) for number in range(size)]
        self._news = news
        self._policy = RestartPolicy()
        self._workers: dict[int, WorkerProcess] = {}
        self._watching: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Return when all serve; raises WorkerError in the words of the one that cannot."""
        for spec in self._specs:
            await self._launch(spec)
        async with asyncio.TaskGroup() as group:
            for worker in self._workers.values():
                group.create_task(worker.ready())
        self._watching = [
            asyncio.create_task(self._watch(spec), name=f"watch-worker-{spec.number}")
            for spec in self._specs
        ]

    def tell(self) -> None:
        """Pass on what is new of the engine."""
        news = self._news()
        for worker in self._workers.values():
            worker.tell(news)

    async def drain(self, stop: StopSignal, grace_s: float) -> None:
        """Let every worker finish what it runs; what outlives the grace ends with an error."""
        self._stop_watching()
        self.signal(signal.SIGTERM)
        ending = asyncio.ensure_future(self._ended(grace_s + END_S))
        if await first_of(stop.forced, ending):
            self.signal(signal.SIGTERM)
            await asyncio.wait((ending,), timeout=END_S)
        ending.cancel()

    async def kill(self) -> None:
        """End what is left of them; may be called twice."""
        self._stop_watching()
        self.signal(signal.SIGKILL)
        await self._ended(END_S)

    async def _launch(self, spec: WorkerSpec) -> None:
        worker = self._workers[spec.number] = await WorkerProcess.spawn(spec, self._news())
        worker.tell(self._news())  # it may have changed while the process was spawned

    async def _watch(self, spec: WorkerSpec) -> None:
        delay_s = None
        while True:
            worker = self._workers[spec.number]
            await worker.ended()
            forget_live(spec.shared_folder, spec.number)
            delay_s = self._policy.next_delay_s(delay_s, worker.age_s)
            log.error("%s; it is started again in %.1f s", worker.manner_of_death, delay_s)
            await asyncio.sleep(delay_s)
            try:
                await self._launch(spec)
            except OSError as error:
                log.error("API worker %d cannot be started: %s", spec.number, error)

    def _stop_watching(self) -> None:
        for task in self._watching:
            task.cancel()

    def signal(self, number: signal.Signals) -> None:
        """Send it to every worker."""
        for worker in self._workers.values():
            worker.signal(number)

    async def _ended(self, timeout_s: float) -> None:
        await _all(self._watching, timeout_s)
        endings = [asyncio.create_task(worker.ended()) for worker in self._workers.values()]
        await _all(endings, timeout_s)


async def _all(tasks: Iterable[asyncio.Task[None]], timeout_s: float) -> None:
    """Wait until they have ended, however they did."""
    tasks = list(tasks)
    if tasks:
        await asyncio.wait(tasks, timeout=timeout_s)
