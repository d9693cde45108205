"""One or several engines that serve the same model as one engine, and which of them runs a request.

A request goes to the replica whose cache holds most of its prompt, within bounds. What a replica
holds is remembered here, by what was sent to it: hashes of whole blocks of tokens, each with all
before it, the least recently used forgotten first. Several routers of one fleet (one in each API
process) know only their own traffic.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

from engines.base import NO_WAIT, EngineInfo, EngineRequest, EngineStats, ExpectedWait
from engines.process.client import EngineClient

_SILENCE_S: Final = 1.0  # for a replica's counts, while another's are there
_NOT_SUMMED = ("kv_block_size",)

BLOCK: Final = 64  # tokens
MAX_BLOCKS: Final = 16384  # of a replica: a million tokens
# A replica may run this many requests more than the idlest before others are used instead.
_SLACK: Final = 4
_RATIO: Final = 1.25


class Replica:
    """One engine process of a fleet: its client, and how many requests this process runs on it."""

    def __init__(self, number: int, engine: EngineClient) -> None:
        self.number = number
        self.engine = engine
        self.num_running = 0  # requests of this API process
        self.stats: EngineStats | None = None  # the last it told
        self._life: int | None = None

    @property
    def life(self) -> int:
        """The number of the engine process that answers or is only silent; 0 once it is gone."""
        return self.engine.life

    @property
    def is_ready(self) -> bool:
        return self.engine.is_ready

    def has_new_life(self) -> bool:
        """Whether the engine process is another one than at the last call."""
        before, self._life = self._life, self.life
        return before not in (None, self._life)


class Fleet:
    """All replicas of one model as one engine, usable as long as one of them is."""

    def __init__(self, engines: Sequence[EngineClient]) -> None:
        self.replicas = [Replica(number, engine) for number, engine in enumerate(engines)]
        self._router = ReplicaRouter(len(engines))

    @property
    def info(self) -> EngineInfo:
        """What the replicas serve, with the sum of their capacities."""
        info = self.replicas[0].engine.info
        return replace(info, max_num_seqs=info.max_num_seqs * len(self.replicas))

    @property
    def folder(self) -> Path:
        return self.replicas[0].engine.folder

    async def start(self) -> None:
        """Return when all replicas are ready; raises EngineStartError if one never is."""
        async with asyncio.TaskGroup() as group:
            for replica in self.replicas:
                group.create_task(replica.engine.start())

    async def healthy(self) -> list[Replica]:
        """The replicas that can serve now; raises EngineDead with the first one's reason if none
        can."""
        found = [replica for replica in self.replicas if replica.is_ready]
        if not found:
            await self.replicas[0].engine.check_health()
        for replica in found:
            if replica.has_new_life():
                self._router.forget(replica.number)
        return found

    async def choose(self, request: EngineRequest) -> Replica:
        """The replica that is to run a request; raises EngineDead if none can."""
        loads = {replica.number: replica.num_running for replica in await self.healthy()}
        return self.replicas[self._router.choose(request, loads)]

    async def stats(self) -> EngineStats:
        """The sum of the counts of all replicas; raises EngineDead if none answers.

        One that is silent counts with what it told last: counters are not to go back.
        """
        asked = {asyncio.create_task(r.engine.stats()): r for r in await self.healthy()}
        try:
            done, silent = await asyncio.wait(asked, timeout=_SILENCE_S)
            if not any(task.exception() is None for task in done) and silent:
                done |= (await asyncio.wait(silent))[0]
            for task in done:
                if task.exception() is None:
                    asked[task].stats = task.result()
            if all(task.exception() is not None for task in done):
                return next(iter(done)).result()
        finally:
            for task in asked:
                task.cancel()
        found = [replica.stats for replica in asked.values() if replica.stats is not None]
        return found[0] if len(found) == 1 else _sum(found)

    def expected_wait(self, tenant: str) -> ExpectedWait:
        found = (r.engine.expected_wait(tenant) for r in self.replicas if r.is_ready)
        return min(found, default=NO_WAIT)

    async def drain(self) -> None:
        await asyncio.gather(*(replica.engine.drain() for replica in self.replicas))

    async def stop(self) -> None:
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


class PrefixRecord:
    """The prompts that one replica has seen, as hashes of their blocks."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def num_cached(self, blocks: Sequence[int]) -> int:
        """How many leading blocks of a prompt the replica has seen."""
        for number, block in enumerate(blocks):
            if block not in self._blocks:
                return number
        return len(blocks)

    def add(self, blocks: Sequence[int]) -> None:
        """Remember a prompt's blocks; the first ones longest: others are of no use without them."""
        for block in reversed(blocks):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > MAX_BLOCKS:
            self._blocks.popitem(last=False)

    def clear(self) -> None:
        self._blocks.clear()


class ReplicaRouter:
    """Chooses among replicas, which it knows by their number."""

    def __init__(self, num_replicas: int) -> None:
        self._records = [PrefixRecord() for _ in range(num_replicas)]
        self._last = 0

    def choose(self, request: EngineRequest, loads: dict[int, int]) -> int:
        """The number of the replica to run the request on.

        `loads`: how many requests each usable replica runs now.
        """
        if len(self._records) == 1:
            return 0
        blocks = list(_blocks(request))
        most = max(min(loads.values()) * _RATIO, min(loads.values()) + _SLACK)
        able = [number for number, load in loads.items() if load <= most]
        chosen = max(able, key=lambda number: self._merit(number, blocks, loads))
        self._records[chosen].add(blocks)
        self._last = chosen
        return chosen

    def forget(self, number: int) -> None:
        """Forget the prompts of a restarted replica: its cache is empty."""
        self._records[number].clear()

    def _merit(
        self, number: int, blocks: Sequence[int], loads: dict[int, int]
    ) -> tuple[int, int, int]:
        """Sort key: most cached blocks first, then the idlest replica, then round-robin."""
        turn = (number - self._last - 1) % len(self._records)
        return self._records[number].num_cached(blocks), -loads[number], -turn


def _blocks(request: EngineRequest) -> Iterator[int]:
    """A hash for each whole block, of it and all before it and the salt."""
    tokens = memoryview(array("q", _known(request)))
    before = hash(request.cache_salt)
    for end in range(BLOCK, len(tokens) + 1, BLOCK):
        before = hash((before, tokens[end - BLOCK : end].tobytes()))
        yield before


def _known(request: EngineRequest) -> Collection[int]:
    return request.prompt_token_ids + request.generated_token_ids
