"""Whether an engine that answers also generates: the part of readiness that a heartbeat misses."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from typing import Any, Final

from engines.base import PROBE_ID, Engine, EngineRequest, EngineStats, SamplingParams
from engines.errors import EngineDead, RequestFailed
from engines.fleet import Fleet

INTERVAL_S: Final = 10.0  # an engine that made a step so recently is not asked for one
STALL_S: Final = 30.0  # a busy engine that made none for so long is not ready
TIMEOUT_S: Final = 60.0
_REQUEST: Final = EngineRequest(PROBE_ID, (0,), SamplingParams(max_tokens=1, temperature=0.0))


class Probe:
    """Checks that one engine generates: a finished step proves it; only an idle one is asked.

    So it costs nothing under load.
    """

    def __init__(
        self, engine: Engine, *, interval_s: float = INTERVAL_S, stall_s: float = STALL_S
    ) -> None:
        self._engine = engine
        self._interval_s = interval_s
        self._stall_s = stall_s
        self._work_done: int | None = None  # at the last look
        self._num_tokens = 0
        self._failure: str | None = None  # of the last token that was asked for
        self._proved_s = -math.inf  # when the engine was last seen to work
        self._still_s = math.inf  # since when it has been busy without a step
        self._probing: asyncio.Task[None] | None = None

    async def check(self) -> None:
        """Return if the engine generates; raises EngineDead. It can be cancelled."""
        now_s = time.monotonic()
        if self._failure is None and now_s - self._proved_s < self._interval_s:
            return
        stats = await self._engine.stats()
        if self._has_worked(stats):
            self._prove()
        elif stats.num_running and self._proved_s > -math.inf and self._probing is None:
            self._check_busy(now_s)
        else:
            await self._generate_once()

    def _has_worked(self, stats: EngineStats) -> bool:
        """Whether it did anything since the last look.

        Steps may end without a token (weights of NaN): until a first token, and after a failure,
        only tokens prove anything.
        """
        work_done, self._work_done = self._work_done, stats.work_done
        num_tokens, self._num_tokens = self._num_tokens, stats.generated_tokens
        if num_tokens > stats.generated_tokens:  # of an engine process that is gone
            num_tokens = 0
        if work_done is None or self._failure is not None or self._proved_s == -math.inf:
            return stats.generated_tokens > num_tokens
        return stats.work_done > work_done

    async def stop(self) -> None:
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.wait([self._probing])

    def _prove(self) -> None:
        self._proved_s, self._still_s = time.monotonic(), math.inf
        self._failure = None

    def _check_busy(self, now_s: float) -> None:
        if self._failure is not None:
            raise EngineDead(self._failure)
        self._still_s = min(self._still_s, now_s)
        if now_s - self._still_s > self._stall_s:
            raise EngineDead(
                f"it has running requests and computed no step for {self._stall_s:g} s"
            )

    async def _generate_once(self) -> None:
        """Concurrent callers wait for the same token."""
        if self._probing is None:
            self._probing = asyncio.create_task(self._generate(), name="engine-probe")
            self._probing.add_done_callback(self._forget)
        await asyncio.shield(self._probing)

    async def _generate(self) -> None:
        try:
            async with (
                asyncio.timeout(TIMEOUT_S),
                contextlib.aclosing(self._engine.generate(_REQUEST)) as events,
            ):
                async for _ in events:
                    pass
        except TimeoutError:
            self._failure = f"it generated nothing within {TIMEOUT_S:g} s"
        except RequestFailed as error:
            self._failure = f"it cannot generate a token: {error}"
        else:
            self._prove()
            return
        raise EngineDead(self._failure)

    def _forget(self, probing: asyncio.Task[None]) -> None:
        self._probing = None
        if not probing.cancelled():
            probing.exception()  # the caller has gone


class Probes:
    """A Probe for each replica; ready while one replica is."""

    def __init__(self, fleet: Fleet[Any]) -> None:
        self._fleet = fleet
        self._probes = {replica: Probe(replica.engine) for replica in fleet.replicas}

    async def check(self) -> None:
        """Return as soon as one replica is found to generate; raises EngineDead if none does."""
        checks = [
            asyncio.create_task(self._probes[replica].check(), name="engine-check")
            for replica in await self._fleet.healthy()
        ]
        try:
            for number, check in enumerate(asyncio.as_completed(checks), start=1):
                try:
                    return await check
                except EngineDead:
                    if number == len(checks):
                        raise
        finally:
            for task in checks:
                task.cancel()
            await asyncio.wait(checks)

    async def stop(self) -> None:
        for probe in self._probes.values():
            await probe.stop()
