"""The highest Poisson rate at which an SLO still holds."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from parts.terminal.bench.exchange import Connector
from parts.terminal.bench.figures import Objective, figures
from parts.terminal.bench.traffic import Poisson

Probe = Callable[[float], Awaitable[bool]]
_LOOK_S = 0.2  # how often a probe is asked whether it can still pass


@dataclass(frozen=True, slots=True)
class Rate:
    """Searches from `rate` on: by a factor, then between the last two."""

    rate: float = 20.0
    seconds: float = 12.0  # of arrivals of each probe
    factor: float = 1.5
    precision: float = 0.08  # of the answer
    probes: int = 8  # at most
    prompt: int = 400
    answer: int = 200

    async def search(self, connector: Connector, seed: int, objective: Objective) -> dict[str, Any]:
        """The rate found, 0 if there is none, and the figures of every probe."""
        probes: list[dict[str, Any]] = []

        async def holds(rate: float) -> bool:
            load = Poisson(rate, self.seconds, self.prompt, self.answer)
            group = await probe(connector, load, seed + len(probes), objective)
            is_good = objective.holds(group)
            probes.append({"rate": round(rate, 2), "holds": is_good, **group})
            return is_good

        highest = await highest_rate(holds, self.rate, self.factor, self.precision, self.probes)
        return {"highest_rate": round(highest, 2), "probes": probes}


async def highest_rate(
    holds: Probe, rate: float, factor: float, precision: float, max_probes: int
) -> float:
    """The highest rate that is known to hold; 0 if that many probes found none."""
    best, worst = 0.0, math.inf
    for _ in range(max_probes):
        if await holds(rate):
            best = max(best, rate)
        else:
            worst = min(worst, rate)
        if best and worst <= best * (1 + precision):
            break
        if not best:
            rate = worst / factor
        else:
            rate = best * factor if worst == math.inf else math.sqrt(best * worst)
    return best


async def probe(
    connector: Connector, load: Poisson, seed: int, objective: Objective
) -> dict[str, Any]:
    """Run one rate; ends early, all cancelled, once too many first tokens are too late."""
    num_expected = load.rate * load.seconds
    running = asyncio.create_task(load.run(connector, seed))
    seen: set[Any] = set()
    while not (await asyncio.wait([running], timeout=_LOOK_S))[0]:
        seen |= connector.open
        now = time.perf_counter()
        late = sum((e.first_at or now) - e.asked_at > objective.ttft_s for e in seen)
        if late > 0.02 * num_expected + 2:  # 1 % would do; the count of arrivals is chance
            running.cancel()
            await asyncio.wait([running])
            await connector.cancel_all()
            return {
                "ended_early": True, "requests": len(seen), "late": late,
                "rejected": 0, "failed": 0, "whole": 0,
            }  # fmt: skip
    group: dict[str, Any] = figures(running.result(), objective)["groups"]["all"]
    return group
