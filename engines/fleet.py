"""One or several engines that serve the same model as one engine, and which of them runs a request.

A request goes to the replica whose cache holds most of its prompt, within bounds. What a replica
holds is remembered by what was sent to it: hashes of whole blocks of tokens, each with all before
it, the least recently used forgotten first. The API workers of one server remember together
(`shared_routes`); several fronts of Dynamo know only their own traffic.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import ChainMap, OrderedDict, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import zip_longest
from typing import Any, Final, Generic, Protocol, TypeVar

from engines.base import NO_WAIT, Engine, EngineInfo, EngineRequest, EngineStats, ExpectedWait
from engines.shared_routes import SharedRoutes
from engines.slow import SlowEngines

_SILENCE_S: Final = 1.0  # for a replica's counts, while another's are there
_ALIKE: Final = ("kv_block_size",)  # of all engines; 0 of one that has told nothing

BLOCK: Final = 64  # tokens
MAX_BLOCKS: Final = 65536  # of a replica: four million tokens, as an H200 holds of gpt-oss-20b
# A replica may run this many requests more than the idlest before others are used instead.
_SLACK: Final = 4
_RATIO: Final = 1.25
# And one more for as many cached tokens: they take an engine about as long as another stream costs
# the others. So a conversation of 20,000 tokens stays where it is until that engine is overloaded.
SAVED_FOR_ONE: Final = 512
# As many tokens of prompts that are to be computed count as one request, for first tokens wait for
# them: among replicas that run hardly more than the idlest, or bursts would spread unevenly.
_PENDING_FOR_ONE: Final = 256
_HARDLY_MORE: Final = 4


class MortalEngine(Engine, Protocol):
    """An engine whose process may die and be replaced by another."""

    @property
    def life(self) -> int:
        """The number of the engine process that answers or is only silent; 0 once it is gone."""

    @property
    def is_ready(self) -> bool:
        """Whether it takes requests now."""

    @property
    def pace(self) -> float | None:
        """Seconds per token, of what it ran lately; None where that is not known."""


E = TypeVar("E", bound=MortalEngine)


class Replica(Generic[E]):
    """One engine of a fleet: its client, and how many requests this process runs on it."""

    def __init__(self, number: int, engine: E, shared: SharedRoutes | None = None) -> None:
        self.number = number
        self.engine = engine
        self.stats: EngineStats | None = None  # the last it told
        self.num_new = 0  # tokens that it was not sent yet, of the request it was last chosen for
        self._shared = shared
        self._num_running = self._num_pending = 0
        self._life: int | None = None

    @property
    def num_running(self) -> int:
        """Requests of this API process."""
        return self._num_running

    @num_running.setter
    def num_running(self, num: int) -> None:
        self._num_running = num
        self._tell()

    def count_prompt(self, num: int) -> None:
        """Count tokens of a prompt that are to be computed; below zero: that are no more."""
        self._num_pending += num
        self._tell()

    def _tell(self) -> None:
        if self._shared is not None:
            self._shared.tell(self.number, self._num_running, self._num_pending)

    @property
    def load(self) -> int:
        """Requests of all API processes of this server."""
        return self._num_running if self._shared is None else self._shared.load(self.number)[0]

    @property
    def num_pending(self) -> int:
        """Tokens of prompts that are to be computed, of all API processes of this server."""
        return self._num_pending if self._shared is None else self._shared.load(self.number)[1]

    @property
    def life(self) -> int:
        return self.engine.life

    @property
    def is_ready(self) -> bool:
        return self.engine.is_ready

    @property
    def pace(self) -> float | None:
        return self.engine.pace

    def has_new_life(self) -> bool:
        """Whether the engine process is another one than at the last call."""
        before, self._life = self._life, self.life
        return before not in (None, self._life)


class Fleet(Generic[E]):
    """All replicas of one model as one engine, usable as long as one of them is."""

    def __init__(self, engines: Sequence[E], shared: SharedRoutes | None = None) -> None:
        """`shared`: of this server's API workers; None for one that is the only one."""
        self.replicas = [Replica(number, each, shared) for number, each in enumerate(engines)]
        self._router = ReplicaRouter(shared)
        self._slow = SlowEngines(
            lambda: [replica for replica in self.replicas if replica.is_ready],
            lambda least: most_load(least, 0),
        )

    @property
    def info(self) -> EngineInfo:
        """What the replicas serve, with the sum of their capacities."""
        info = self.replicas[0].engine.info
        return replace(info, max_num_seqs=info.max_num_seqs * len(self.replicas))

    @property
    def slow(self) -> Collection[int]:
        """Numbers of the replicas that are avoided, for they are much slower than another."""
        return self._slow.numbers

    async def start(self) -> None:
        """Return when all replicas are ready; raises EngineStartError if one never is."""
        async with asyncio.TaskGroup() as group:
            for replica in self.replicas:
                group.create_task(replica.engine.start())

    async def healthy(self) -> list[Replica[E]]:
        """The replicas that can serve now; raises EngineDead with the first one's reason if none
        can."""
        found = [replica for replica in self.replicas if replica.is_ready]
        if not found:
            await self.replicas[0].engine.check_health()
        for replica in found:
            if replica.has_new_life():
                self._router.forget(replica.number, replica.life)
        return found

    async def choose(self, request: EngineRequest) -> Replica[E]:
        """The replica that is to run a request; raises EngineDead if none can."""
        able = {replica.number: replica for replica in await self.healthy()}
        loads = {number: replica.load for number, replica in able.items()}
        full = {number: replica.engine.info.max_num_seqs for number, replica in able.items()}
        has_room = {number: load for number, load in loads.items() if load < full[number]}
        self._slow.judge()
        is_fast = {number: load for number, load in has_room.items() if number not in self.slow}
        usable = is_fast or has_room or loads
        pending = {number: able[number].num_pending for number in usable}
        chosen = able[self._router.choose(request, usable, pending)]
        chosen.num_new = self._router.num_new
        return chosen

    def forget(self, number: int) -> None:
        """Take a replica's cache for empty."""
        self._router.forget(number)

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
        return found[0] if len(found) == 1 else sum_of(found)

    def expected_wait(self, tenant: str) -> ExpectedWait:
        found = (r.engine.expected_wait(tenant) for r in self.replicas if r.is_ready)
        return min(found, default=NO_WAIT)

    async def drain(self) -> None:
        await asyncio.gather(*(replica.engine.drain() for replica in self.replicas))

    async def stop(self) -> None:
        await self._slow.stop()
        for replica in self.replicas:
            await replica.engine.stop()


def sum_of(found: Sequence[EngineStats]) -> EngineStats:
    """The counts of several engines as those of one."""
    return EngineStats(**{each.name: _sum_of(each.name, found) for each in fields(EngineStats)})


def _sum_of(name: str, found: Sequence[EngineStats]) -> Any:
    values = [getattr(stats, name) for stats in found]
    if isinstance(values[0], tuple):
        return tuple(map(sum, zip_longest(*values, fillvalue=0)))
    if isinstance(values[0], Mapping):
        return {key: sum(each.get(key, 0) for each in values) for key in dict(ChainMap(*values))}
    return max(values) if name in _ALIKE else sum(values)


class Seen(Protocol):
    """What each replica has been sent."""

    def num_cached(self, blocks: Sequence[int], numbers: Iterable[int]) -> dict[int, int]:
        """How many leading blocks of a prompt each of these replicas has seen."""

    def add(self, number: int, blocks: Sequence[int]) -> None: ...

    def forget(self, number: int, life: int) -> None: ...


class OwnRecords(Seen):
    """A record of each replica, in this process."""

    def __init__(self) -> None:
        self._records: defaultdict[int, PrefixRecord] = defaultdict(PrefixRecord)

    def num_cached(self, blocks: Sequence[int], numbers: Iterable[int]) -> dict[int, int]:
        return {number: self._records[number].num_cached(blocks) for number in numbers}

    def add(self, number: int, blocks: Sequence[int]) -> None:
        self._records[number].add(blocks)

    def forget(self, number: int, life: int) -> None:
        del life
        self._records.pop(number, None)


class PrefixRecord:
    """The prompts that one replica has seen, as hashes of their blocks."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def num_cached(self, blocks: Sequence[int]) -> int:
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


class ReplicaRouter:
    """Chooses among replicas, which it knows by their number."""

    def __init__(self, seen: Seen | None = None) -> None:
        """`seen`: what others add to as well."""
        self._seen = seen or OwnRecords()
        self.num_new = 0  # tokens that the last replica chosen is to compute, if there are several
        self._last = 0
        self._is_alone = True  # there has never been more than one replica

    def choose(
        self, request: EngineRequest, loads: dict[int, int], pending: Mapping[int, int] = {}
    ) -> int:
        """The number of the replica to run the request on.

        `loads`: how many requests each usable replica runs now; `pending`: how many tokens of
        their prompts it has to compute.
        """
        self._is_alone = self._is_alone and len(loads) == 1
        if self._is_alone:
            return next(iter(loads))
        blocks = list(_blocks(request))
        cached, least = self._seen.num_cached(blocks, loads), min(loads.values())
        able = [n for n, load in loads.items() if load <= most_load(least, cached[n] * BLOCK)]

        def merit(number: int) -> tuple[int, bool, float, bool, int]:
            """Most cached blocks first, then the replica with the least to do, then round-robin."""
            is_idle = loads[number] <= least + _HARDLY_MORE
            work = loads[number] + pending.get(number, 0) / _PENDING_FOR_ONE * is_idle
            return cached[number], is_idle, -work, number > self._last, -number

        self._last = max(able, key=merit)
        self._seen.add(self._last, blocks)
        self.num_new = len(_known(request)) - cached[self._last] * BLOCK
        return self._last

    def forget(self, number: int, life: int = 0) -> None:
        """Forget the prompts of a replica that left, or restarted with this life: its cache is
        empty."""
        self._seen.forget(number, life)


def most_load(least: int, num_saved: int) -> float:
    """Up to how many requests a replica gets another, by how many the idlest runs and how many
    tokens of the prompt it has."""
    return max(least * _RATIO, least + _SLACK, least + num_saved / SAVED_FOR_ONE)


def _blocks(request: EngineRequest) -> Iterator[int]:
    """A hash for each whole block, of it and all before it and the salt.

    The API workers of one server have one PYTHONHASHSEED, so that their hashes are the same.
    """
    tokens = memoryview(array("q", _known(request)))
    before = hash(request.cache_salt or "")
    for end in range(BLOCK, len(tokens) + 1, BLOCK):
        before = hash((before, tokens[end - BLOCK : end].tobytes()))
        yield before


def _known(request: EngineRequest) -> Collection[int]:
    return request.prompt_token_ids + request.generated_token_ids
