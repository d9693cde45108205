"""One or several engines that serve the same model, as far as they are alike: one engine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from engines.base import EngineInfo, EngineRequest, EngineStats
from engines.process.client import EngineClient
from engines.replicas.router import Router

_NOT_SUMMED = ("kv_block_size",)


class Replica:
    """A client of one engine process and what is known of it here."""

    def __init__(self, number: int, engine: EngineClient) -> None:
        self.number = number
        self.engine = engine
        self.num_running = 0  # requests of this API process
        self._life: int | None = None

    @property
    def life(self) -> int:
        """A number of the process that answers or is only silent; 0 once it is gone."""
        return self.engine.life

    @property
    def is_ready(self) -> bool:
        return self.engine.is_ready

    def has_new_life(self) -> bool:
        """Whether it is another process than at the last look."""
        before, self._life = self._life, self.life
        return before not in (None, self._life)


class Fleet:
    """All replicas; usable as long as one of them is."""

    def __init__(self, engines: Sequence[EngineClient]) -> None:
        self.replicas = [Replica(number, engine) for number, engine in enumerate(engines)]
        self._router = Router(len(engines))

    @property
    def info(self) -> EngineInfo:
        """What they serve, with room for as many requests as all have together."""
        info = self.replicas[0].engine.info
        return replace(info, max_num_seqs=info.max_num_seqs * len(self.replicas))

    @property
    def folder(self) -> Path:
        """A private folder that lasts as long as the server."""
        return self.replicas[0].engine.folder

    async def start(self) -> None:
        """Return when all are ready; raises EngineStartError if one never is."""
        async with asyncio.TaskGroup() as group:
            for replica in self.replicas:
                group.create_task(replica.engine.start())

    async def healthy(self) -> list[Replica]:
        """Those that can serve now; raises EngineDead with the first one's reason if none can."""
        found = [replica for replica in self.replicas if replica.is_ready]
        if not found:
            await self.replicas[0].engine.check_health()
        for replica in found:
            if replica.has_new_life():
                self._router.forget(replica.number)
        return found

    async def choose(self, request: EngineRequest) -> Replica:
        """The replica that is to run a request; raises EngineDead."""
        loads = {replica.number: replica.num_running for replica in await self.healthy()}
        return self.replicas[self._router.choose(request, loads)]

    async def stats(self) -> EngineStats:
        """The sum of those that answer; raises EngineDead if none does."""
        found = await asyncio.gather(*(r.engine.stats() for r in await self.healthy()))
        return found[0] if len(found) == 1 else _sum(found)

    async def drain(self) -> None:
        """Drain all."""
        await asyncio.gather(*(replica.engine.drain() for replica in self.replicas))

    async def stop(self) -> None:
        """Stop all."""
        for replica in self.replicas:
            await replica.engine.stop()


def _sum(found: Iterable[EngineStats]) -> EngineStats:
    found = list(found)
    values: dict[str, Any] = {
        each.name: sum(getattr(stats, each.name) for stats in found)
        for each in fields(EngineStats)
        if each.name not in _NOT_SUMMED
    }
    return replace(found[0], **values)
