"""How long first tokens wait behind several engines, by how requests are routed; simulated.

    python -m tools.benchmarks.routing

Step loops and router are those of the product. The devices compute nothing: a step takes `PACE` of
what `gpu-20b-h100.json` says that one H100 takes for gpt-oss-20b; that gives times near those
of four H100 under the same load (`gpu-fleet-20b-h100x4.json`). The load is `harmonium bench --load
poisson=160` without HTTP. `requests`: the router knows how many requests each engine runs;
`prompts`: also how many tokens of prompts it has to compute, as in the product.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from engines.base import EngineRequest, SamplingParams
from engines.fleet import BLOCK, ReplicaRouter
from engines.native.step_costs import StepCosts
from tests.engines.native.scheduling.simulation import Record, Simulation, quantile
from tools.benchmarks.waiting import h100

RESULTS: Final = Path("tools/benchmarks/results/routing-simulated.json")
RATE: Final = 160.0
SECONDS: Final = 20.0
SEEDS: Final = (1, 2, 3)
PACE: Final = 0.9
MAX_GAP_S: Final = 0.05

Job = tuple[float, int, int]
"""When a request comes, the tokens of its prompt and of its answer."""


def jobs(rate: float, seconds: float, seed: int) -> list[Job]:
    chance, at_s, found = random.Random(seed), 0.0, list[Job]()
    while (at_s := at_s + chance.expovariate(rate)) < seconds:
        prompt = min(8192, max(16, chance.lognormvariate(math.log(400), 0.9)))
        answer = min(1024, max(8, chance.lognormvariate(math.log(200), 0.7)))
        found.append((at_s, int(prompt), int(answer)))
    return found


def routed(load: Sequence[Job], num_engines: int, *, by_prompts: bool) -> list[Record]:
    """What became of the requests, which are sent to an engine as they come."""
    costs = [_h100() for _ in range(num_engines)]
    engines = [Simulation(max_token_gap_s=MAX_GAP_S, costs=each, believed=each) for each in costs]
    router, running = ReplicaRouter(), [list[Record]() for _ in engines]
    for number, (at_s, prompt, answer) in enumerate(load):
        for each, of_engine in zip(engines, running, strict=True):
            each.run(until_s=at_s)
            each.clock.now_s = max(each.clock.now_s, at_s)
            of_engine[:] = [r for r in of_engine if not r.is_done or r.token_s[-1] > at_s]
        loads = {n: len(of_engine) for n, of_engine in enumerate(running)}
        pending = {n: sum(map(_pending_at(at_s), of)) for n, of in enumerate(running)}
        own = EngineRequest(str(number), (number,) * BLOCK, SamplingParams(answer))
        chosen = router.choose(own, loads, pending if by_prompts else {})
        running[chosen].append(engines[chosen].ask(at_s, prompt, answer))
    for each in engines:
        each.run()
    return [record for each in engines for record in each.records]


def _h100() -> StepCosts:
    found = h100().as_dict()
    for name in ("decode", "prefill"):
        found[name] = {num: PACE * seconds for num, seconds in found[name].items()}
    return StepCosts.from_dict(found)


def _pending_at(at_s: float) -> Any:
    return lambda record: 0 if record.token_s and record.token_s[0] <= at_s else record.prompt


def ttft_ms(records: Sequence[Record]) -> dict[str, float]:
    times = [1000 * record.ttft_s for record in records]
    return {f"p{n}": round(quantile(times, n / 100), 1) for n in (50, 90, 99)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", type=int, default=4)
    parser.add_argument("--json", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    found: dict[str, Any] = {
        "device": f"simulated: {PACE} of what one H100 takes for gpt-oss-20b; no GPU was used",
        "engines": arguments.engines,
        "poisson": RATE,
        "seeds": SEEDS,
    }
    for name, by_prompts in (("requests", False), ("prompts", True)):
        runs = [
            ttft_ms(routed(jobs(RATE, SECONDS, seed), arguments.engines, by_prompts=by_prompts))
            for seed in SEEDS
        ]
        found[name] = {"runs": runs, "median": {p: median(r[p] for r in runs) for p in runs[0]}}
        print(name, json.dumps(found[name]), flush=True)
    arguments.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
