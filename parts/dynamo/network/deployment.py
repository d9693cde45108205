"""The workers of one endpoint as a fleet that follows discovery: they come and go."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from engines.base import EngineInfo, EngineStats
from engines.errors import EngineDead
from engines.fleet import Fleet, Replica, sum_of
from parts.dynamo.network.runtime import Discovery, connect
from parts.dynamo.network.worker_client import Kind, WorkerClient

FOLLOW_S: Final = 0.25  # how often discovery is looked at
STATS_S: Final = 1.0  # for a worker's counts
PATIENCE_S: Final = 10.0

log = logging.getLogger(__name__)


class Deployment(Fleet[WorkerClient]):
    """All workers of an endpoint that are of one kind: the first one's, as long as it is there."""

    def __init__(
        self,
        endpoint: str,
        discovery: Discovery,
        on_change: Callable[[], None],
        patience_s: float = PATIENCE_S,
    ) -> None:
        """`on_change`: called when a worker has come or gone; `patience_s`: without a worker,
        before the deployment counts as dead."""
        super().__init__(())
        self._endpoint = endpoint
        self._discovery = discovery
        self._on_change = on_change
        self._patience_s = patience_s
        self._numbers = itertools.count()
        self._runtime: Any = None
        self._client: Any = None
        self._following: asyncio.Task[None] | None = None
        self._kind: Kind | None = None
        self._info: EngineInfo | None = None
        self._past = EngineStats()  # counted by workers that are gone
        self._changed = asyncio.Event()
        self._alone_s = 0.0  # since when there is no worker

    @property
    def info(self) -> EngineInfo:
        """What the workers serve, with the sum of the capacities of those that serve now."""
        if self._info is None:
            raise EngineDead("the engine is not running")
        return self._info

    @property
    def is_dead(self) -> bool:
        """Whether there has been no worker for so long that none is waited for."""
        return not self._ready and time.monotonic() - self._alone_s >= self._patience_s

    async def start(self) -> None:
        """Return when a worker serves, however long that takes."""
        self._runtime = connect(self._discovery)
        await self.join(self._runtime)
        log.info("Waiting for a worker of Dynamo at %s", self._endpoint)
        while self._info is None:
            await self._next_change()

    async def join(self, runtime: Any) -> None:
        """Follow the workers from now on, by a runtime that is its owner's to shut down."""
        self._client = await runtime.endpoint(self._endpoint).client()
        self._following = asyncio.create_task(self._follow(), name="deployment")

    async def healthy(self) -> list[Replica[WorkerClient]]:
        """The workers that serve; waits for one; raises EngineDead once the deployment is dead."""
        while not (found := self._ready):
            if self.is_dead:
                raise EngineDead(f"no worker of Dynamo serves {self._endpoint}")
            await self._next_change()
        for replica in found:
            if replica.has_new_life():
                self._router.forget(replica.number)
        return found

    async def stats(self) -> EngineStats:
        """The sum of what the workers count, and of what those counted that are gone.

        One that is silent counts with what it told last.
        """
        asked = [asyncio.create_task(replica.engine.look()) for replica in self._ready]
        try:
            if asked:
                await asyncio.wait(asked, timeout=STATS_S)
        finally:
            for task in asked:
                task.cancel()
        return sum_of([self._past, *(_told(replica.engine) for replica in self.replicas)])

    async def stop(self) -> None:
        following, self._following = self._following, None
        if following is not None:
            following.cancel()
            await asyncio.wait([following])
        await super().stop()
        runtime, self._runtime, self._info = self._runtime, None, None
        if runtime is not None:
            runtime.shutdown()

    @property
    def _ready(self) -> list[Replica[WorkerClient]]:
        return [replica for replica in self.replicas if replica.is_ready]

    async def _next_change(self) -> None:
        self._changed.clear()
        try:
            async with asyncio.timeout(FOLLOW_S):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def _follow(self) -> None:
        while True:
            await self._take_note(set(self._client.instance_ids()))
            await asyncio.sleep(FOLLOW_S)

    async def _take_note(self, listed: set[int]) -> None:
        """Begin to use workers that discovery lists, and to forget those that it does not."""
        has_changed = False
        for replica in list(self.replicas):
            worker = replica.engine
            has_changed |= worker.is_listed != (worker.instance_id in listed)
            worker.is_listed = worker.instance_id in listed
            if not worker.is_listed and not replica.num_running:
                self.replicas.remove(replica)
                self._router.forget(replica.number)
                if worker.state is not None:
                    self._past = sum_of([self._past, _counters(worker.state.stats)])
                await worker.stop()
        for instance_id in listed - {replica.engine.instance_id for replica in self.replicas}:
            worker = WorkerClient(self._client, instance_id, self._note_change)
            self.replicas.append(Replica(next(self._numbers), worker))
            await worker.start()
        if has_changed:
            self._note_change()

    def _note_change(self) -> None:
        """Count again what the workers can do together."""
        workers = [replica.engine for replica in self.replicas]
        self._kind = self._kind or next((w.kind for w in workers if w.life and w.kind), None)
        for worker in workers:
            was_ours = worker.is_of_our_kind
            worker.is_of_our_kind = worker.state is None or worker.kind == self._kind
            if was_ours and not worker.is_of_our_kind:
                log.warning(
                    "Worker %x is not used: it differs from the others in its release, engine, "
                    "vocabulary, context length or capabilities",
                    worker.instance_id,
                )
        infos = [replica.engine.info for replica in self._ready]
        if infos:
            self._info = replace(
                infos[0],
                max_num_seqs=sum(info.max_num_seqs for info in infos),
                max_num_batched_tokens=sum(info.max_num_batched_tokens for info in infos),
            )
        else:
            self._alone_s = time.monotonic()
        self._changed.set()
        self._on_change()


def _told(worker: WorkerClient) -> EngineStats:
    if worker.state is None:
        return EngineStats()
    return worker.state.stats if worker.life else _counters(worker.state.stats)


def _counters(stats: EngineStats) -> EngineStats:
    """What counts on after a worker's end: all but what it holds now."""
    return replace(
        stats, num_running=0, num_waiting=0, num_kv_blocks=0, num_free_kv_blocks=0, levels={}
    )
