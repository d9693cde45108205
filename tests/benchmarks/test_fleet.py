"""The simulated fleet: its GPU beside the engine's own step loop, its router beside the front's."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from engines import fleet
from engines.base import EngineRequest, SamplingParams
from tests.engines.native.scheduling.simulation import Simulation, quantile
from tools.fleet.gpu import Cache, Gpu, measured_costs
from tools.fleet.routers import ROUTERS, BySent
from tools.fleet.simulation import run
from tools.fleet.trace import BLOCK, Line, Request, traffic

SYSTEM = 7  # the block that all prompts begin with


def conversations(num: int, turns: int, rate: float) -> list[Line]:
    """Each turn has all blocks of the one before it, and two more."""
    chance, lines = random.Random(1), []
    for number in range(num):
        at_s = chance.uniform(0, num * turns / rate)
        for turn in range(turns):
            blocks = (SYSTEM, *(1000 * (number + 1) + i for i in range(2 * turn + 4)))
            lines.append(Line(at_s, len(blocks) * BLOCK, chance.randint(20, 200), blocks))
            at_s += chance.uniform(5, 15)
    return sorted(lines, key=lambda line: line.at_s)


def requests_of(lines: Sequence[Line]) -> list[Request]:
    return [Request(line.at_s, line.prompt, line.answer, line.blocks) for line in lines]


def tokens_of(request: Request) -> list[int]:
    return [1000 + block * 31 % 100_000 + i for block in request.blocks for i in range(BLOCK)]


@pytest.mark.heavy
def test_a_gpu_is_as_quick_as_the_engines_own_steps() -> None:
    """The same requests through the native engine's scheduler, cache and step budget."""
    lines = conversations(15, 3, rate=4.0)
    requests = requests_of(lines)
    figures = run(requests, ROUTERS["round robin"](), 1, 0.0)
    costs = measured_costs()
    engine = Simulation(max_token_gap_s=0.05, costs=costs, believed=measured_costs())
    records = [engine.ask(r.at_s, tokens_of(r), r.answer) for r in requests]
    engine.run()
    ttfts = [record.ttft_s for record in records]
    each = [1000 * sum(r.gaps_s) / len(r.gaps_s) for r in records]
    cached = sum(r.num_cached for r in records) / sum(r.prompt for r in records)
    assert figures.cached_share == pytest.approx(cached, abs=0.03)
    assert figures.ttft_p50_s == pytest.approx(quantile(ttfts, 0.5), rel=0.25)
    assert figures.ms_per_token_p50 == pytest.approx(quantile(each, 0.5), rel=0.25)


def test_an_event_that_is_cut_ends_with_a_step() -> None:
    """An answer alone, and the same with another that comes amid it."""
    alone, cut = Gpu(measured_costs()), Gpu(measured_costs())
    first, again = (Request(0.0, 100, 1000, ()) for _ in range(2))
    for gpu, request in ((alone, first), (cut, again)):
        gpu.add(request, 0.0)
        gpu.finish()
    assert alone.done_s > 1.0
    alone.finish()
    cut.add(Request(1.0, 100, 1, ()), 1.0)
    assert 1.0 <= cut.done_s < 1.003  # the step that computes
    while cut.num_requests:
        cut.finish()
    assert 0 < again.last_s - first.last_s < 0.02  # one step beside a chunk


def test_the_router_is_the_fronts(monkeypatch: pytest.MonkeyPatch) -> None:
    """It chooses as engines.fleet.ReplicaRouter does, with the blocks of 512 tokens."""
    router, own = BySent(), fleet.ReplicaRouter()
    chance = random.Random(3)
    gpus = [Gpu(measured_costs()) for _ in range(5)]
    for request in requests_of(conversations(30, 3, rate=4.0)):
        for gpu in gpus:
            gpu.num_requests = chance.randrange(12)
        loads = {number: gpu.num_requests for number, gpu in enumerate(gpus)}
        asked = EngineRequest("r", tuple(tokens_of(request)), SamplingParams(1))
        assert router.choose(request, gpus) == own.choose(asked, loads)


def test_a_cache_drops_the_ends_of_what_was_not_used_for_longest() -> None:
    cache = Cache(4)
    cache.use((1, 2, 3))
    cache.use((1, 9))
    cache.use((1, 8))
    assert cache.num_cached((1, 2, 3)) == 2
    assert cache.num_cached((1, 9)) == 2
    assert cache.news() == ([3, 2, 1, 9, 8], [3])


def test_copies_share_the_system_prompt_alone() -> None:
    found = traffic(conversations(20, 2, rate=2.0), copies=3, share=0.5, seconds=10.0)
    firsts = {request.blocks[0] for request in found}
    assert firsts == {SYSTEM}
    assert len({request.blocks[1] >> 32 for request in found}) == 3


def test_the_same_traffic_gives_the_same_figures_and_prefixes_pay() -> None:
    def served(router: str) -> dict[str, float]:
        requests = requests_of(conversations(60, 5, rate=8.0))
        return run(requests, ROUTERS[router](), 4, 5.0).as_dict()

    found = {name: served(name) for name in ROUTERS}
    assert found["front"] == served("front")
    assert found["front"]["cached_share"] > 1.5 * found["round robin"]["cached_share"]
    assert found["KV events"]["ttft_p50_s"] < found["round robin"]["ttft_p50_s"]
