"""A fleet under traffic: requests come, a router places them, GPUs compute."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from heapq import heappop, heappush

from tools.fleet.gpu import Gpu, measured_costs
from tools.fleet.routers import Router
from tools.fleet.trace import Request


@dataclass(frozen=True, slots=True)
class Figures:
    """What users and the fleet saw; of requests that came after the warm-up."""

    requests: int
    cached_share: float  # of the prompts' tokens
    ttft_p50_s: float
    ttft_p99_s: float
    ms_per_token_p50: float
    ms_per_token_p99: float
    most_held_share: float  # of one GPU's cache, by running requests

    def as_dict(self) -> dict[str, float]:
        return {name: round(value, 4) for name, value in asdict(self).items()}


def run(requests: Sequence[Request], router: Router, num_gpus: int, warm_up_s: float) -> Figures:
    """Answer all requests, which are in the order of their times."""
    costs = measured_costs()
    gpus = [Gpu(costs) for _ in range(num_gpus)]
    events: list[tuple[float, int]] = []  # heap: when a GPU may be done, and which

    def expect(number: int) -> None:
        if gpus[number].done_s < math.inf:
            heappush(events, (gpus[number].done_s, number))

    def pass_until(now_s: float) -> None:
        while events and events[0][0] <= now_s:
            done_s, number = heappop(events)
            if (gpu := gpus[number]).done_s == done_s:  # else the event was cut short
                gpu.finish()
                expect(number)
                router.note(number, *gpu.cache.news())

    for request in requests:
        pass_until(request.at_s)
        gpus[number := router.choose(request, gpus)].add(request, request.at_s)
        expect(number)
    pass_until(math.inf)
    counted = [request for request in requests if request.at_s >= warm_up_s]
    return _figures(counted, max(gpu.held_share for gpu in gpus))


def _figures(counted: Sequence[Request], held_share: float) -> Figures:
    ttfts = sorted(request.ttft_s for request in counted)
    each = sorted(1000 * r.s_per_token for r in counted if r.answer > 1)
    return Figures(
        len(counted),
        sum(r.num_cached for r in counted) / sum(r.prompt for r in counted),
        _quantile(ttfts, 0.5),
        _quantile(ttfts, 0.99),
        _quantile(each, 0.5),
        _quantile(each, 0.99),
        held_share,
    )


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]
