"""Engines that are much slower than another of their fleet: requests avoid them until they are not.

An engine that works, only slowly (a GPU that is throttled, a neighbour on its cores), raises no
error. It is known by its time per token, which its own process measures. While it is avoided, it is
given a few tokens to generate now and then, which tell when it has recovered.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection
from typing import Any, Final, Protocol

from engines.base import PROBE_ID, EngineRequest, SamplingParams
from engines.errors import EngineError

SLOW: Final = 5.0  # times the time per token of the fastest
FAST_AGAIN: Final = 2.0
LOOK_AGAIN_S: Final = 5.0
_FEW_TOKENS: Final = EngineRequest(PROBE_ID, (0,), SamplingParams(max_tokens=16))

log = logging.getLogger("engines.fleet")


class Paced(Protocol):
    """A replica of a fleet."""

    number: int
    engine: Any

    @property
    def load(self) -> int: ...

    @property
    def pace(self) -> float | None: ...


class SlowEngines:
    """Those of a fleet that are avoided now."""

    def __init__(
        self, usable: Callable[[], Collection[Paced]], most_load: Callable[[int], float]
    ) -> None:
        """`usable`: the replicas that can serve now; `most_load`: what one of them gets at most, by
        the load of another. One that has more may be slow for that."""
        self.numbers: set[int] = set()
        self._usable = usable
        self._most_load = most_load
        self._looking: dict[int, asyncio.Task[None]] = {}

    def judge(self) -> None:
        """Compare all, and begin to look at those that are slow from now on."""
        paces = {each: pace for each in self._usable() if (pace := each.pace) is not None}
        slow: set[int] = set()
        if len(paces) > 1:
            fastest = min(paces, key=lambda each: paces[each])
            for replica, pace in paces.items():
                times, is_known = pace / paces[fastest], replica.number in self.numbers
                most = float("inf") if is_known else self._most_load(fastest.load)
                if times > (FAST_AGAIN if is_known else SLOW) and replica.load <= most:
                    slow.add(replica.number)
                    self._look_at(replica, times)
        for number in self.numbers - slow:
            log.warning("Engine %d is no longer avoided", number)
        self.numbers = slow

    def _look_at(self, replica: Paced, times: float) -> None:
        if replica.number in self.numbers:
            return
        log.warning(
            "Engine %d takes %.0f times as long for a token as another: requests avoid it, unless "
            "the others are full",
            *(replica.number, times),
        )
        before = self._looking.get(replica.number)
        if before is None or before.done():
            looking = asyncio.create_task(self._look(replica), name="slow-engine")
            self._looking[replica.number] = looking

    async def _look(self, replica: Paced) -> None:
        await asyncio.sleep(LOOK_AGAIN_S)
        while replica.number in self.numbers:
            with contextlib.suppress(EngineError):
                async with contextlib.aclosing(replica.engine.generate(_FEW_TOKENS)) as events:
                    async for _ in events:
                        pass
            await asyncio.sleep(LOOK_AGAIN_S)  # by then its process has told
            self.judge()

    async def stop(self) -> None:
        """Look no more."""
        for looking in self._looking.values():
            looking.cancel()
        if self._looking:
            await asyncio.wait(self._looking.values())
