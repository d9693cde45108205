"""Who waits for how long before an engine, by the order within one caller; on a simulated device.

    python -m tools.benchmarks.waiting

Queue and step loop are those of the product. The device computes nothing: a step takes what
`gpu-20b-h100.json` says that one H100 takes for gpt-oss-20b, and time passes only when a step does.
No GPU is needed, and the figures are the same on every machine. All requests have one key.

`beside`: 400 prompts of 4,000 tokens at once, and from the first second on 24 chats, two a second.
`batch`: chats at random times, beside a batch that never ends and without it.
`by_length`: a minute of arrivals of all lengths, more than the device can read; medians of seeds.
`tools/docs/waiting.py` draws the last.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

import pytest

from engines.base import LOWEST_PRIORITY
from engines.native.step_costs import StepCosts
from engines.queueing.fair_queue import Entry
from engines.queueing.own_order import ByArrival, ShortestFirst
from service.answer.tiers import Tier
from tests.engines.native.scheduling.simulation import H200, Clock, quantile, random_tokens
from tests.engines.native.traffic.queued import Order, Run, Told, serving, simulate

RESULTS: Final = Path("tools/benchmarks/results/waiting-simulated.json")
MEASURED: Final = Path("tools/benchmarks/results/gpu-20b-h100.json")
ORDERS: Final[Mapping[str, Order]] = {
    "by_arrival": ByArrival[Entry[Run]],
    "shortest_first": ShortestFirst[Entry[Run]],
}
LENGTHS: Final = (256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768)
SEEDS: Final = (1, 2, 3)
NUM_BULK: Final = 400
NUM_CHATS: Final = 24
NUM_LINES: Final = 1500
NUM_PATIENT: Final = 40
SETTLED_S: Final = 10.0
SECONDS: Final = 60.0
RATE: Final = 22.0  # a second: 1.3 times what the device reads


def h100() -> StepCosts:
    """What was measured there: steps of more than 2,048 tokens at their pace; costs of attention
    are those of an H200."""
    found = json.loads(MEASURED.read_text())
    decode = {row["rows"]: row["ms"] for row in found["decode"] if row["context"] == 128}
    rows = [row for row in found["prefill"] if row["prompts"] == 1 and row["tokens"] <= 2048]
    prefill = {row["tokens"]: row["ms"] for row in rows}
    prefill[64] = H200["prefill"][64] * prefill[128] / H200["prefill"][128]
    prefill |= {times * 2048: times * prefill[2048] for times in (2, 4)}
    values = {
        **H200,
        "decode": {rows: ms / 1000 for rows, ms in sorted(decode.items())},
        "prefill": {tokens: ms / 1000 for tokens, ms in sorted(prefill.items())},
        "per_context": H200["per_context"] / 1000,
        "per_pair": H200["per_pair"] / 1000,
    }
    return StepCosts.from_dict(values)


def main() -> None:
    """Simulate all, and write the results."""
    parser = argparse.ArgumentParser(prog="python -m tools.benchmarks.waiting", description=__doc__)
    parser.add_argument("--json", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    found = {
        "device": "simulated: steps take what one H100 took (gpu-20b-h100.json); no GPU was used",
        "model": "gpt-oss-20b",
        "engine": {"max_num_seqs": 512, "max_num_batched_tokens": 8192, "max_token_gap_ms": 50},
        "beside": beside(),
        "batch": batch(),
        "by_length": {name: by_length(order) for name, order in ORDERS.items()},
    }
    arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found))


def beside() -> dict[str, Any]:
    """Bulk alone, and with chats beside it: in both orders, and with the bulk as `flex`."""
    found: dict[str, Any] = {
        "bulk": {"requests": NUM_BULK, "prompt": 4000, "answer": 64},
        "chats": {"requests": NUM_CHATS, "prompt": 200, "answer": 100, "a_second": 2},
    }
    shortest = ORDERS["shortest_first"]
    bulk, _ = _beside(shortest, 0)
    found["bulk_alone_s"] = round(max(told.ended_s for told in bulk), 2)
    for name, order, tier in (
        *((name, order, Tier.DEFAULT) for name, order in ORDERS.items()),
        ("bulk_is_flex", shortest, Tier.FLEX),
    ):
        bulk, chats = _beside(order, NUM_CHATS, tier.priority)
        gaps = [gap for told in chats for gap in told.gaps_s]
        found[name] = {
            "bulk_s": round(max(told.ended_s for told in bulk), 2),
            "chat_ttft_s": _quantiles([told.ttft_s for told in chats]),
            "chat_gap_ms": {at: round(1000 * s, 1) for at, s in _quantiles(gaps).items()},
            "bulk_longest_ttft_s": round(max(told.ttft_s for told in bulk), 2),
        }
    return found


def _beside(order: Order, num_chats: int, priority: int = 0) -> tuple[list[Told], list[Told]]:
    async def run(clock: Clock) -> list[Told]:
        async with serving(clock, own_order=order, costs=h100) as client:
            bulk = [
                client.ask(random_tokens(n, 4000), 64, priority=priority) for n in range(NUM_BULK)
            ]
            chats = [
                client.ask_at(1 + n / 2, random_tokens(NUM_BULK + n, 200), 100)
                for n in range(num_chats)
            ]
            return await asyncio.gather(*bulk, *chats)

    with pytest.MonkeyPatch.context() as patched:
        answers = simulate(patched, run)
    return answers[:NUM_BULK], answers[NUM_BULK:]


def batch() -> dict[str, Any]:
    """Chats beside a full batch and without it, the batch's tokens a second beside them and alone.

    What the first chat finds is left out: until then the batch has the device to itself.
    """
    found: dict[str, Any] = {
        "batch": {"prompt": 500, "answer": 200},
        "chats": {"requests": NUM_PATIENT, "prompt": 200, "answer": 100, "a_second": 2},
    }
    for name, num_bulk, num_chats in (
        ("chats_alone", 0, NUM_PATIENT),
        ("chats_beside", NUM_LINES, NUM_PATIENT),
        ("batch_alone", NUM_LINES, 0),
    ):
        bulk, chats = _beside_batch(num_bulk, num_chats)
        row: dict[str, Any] = {}
        found[name] = row
        if chats:
            row["ttft_s"] = _quantiles([told.ttft_s for told in chats[1:]])
        if bulk:
            until_s = max((told.ended_s for told in chats), default=SETTLED_S)
            times = [
                at for told in bulk for at in told.token_times if SETTLED_S / 2 <= at < until_s
            ]
            row["batch_tokens_per_s"] = round(len(times) / (until_s - SETTLED_S / 2))
    return found


def _beside_batch(num_bulk: int, num_chats: int) -> tuple[list[Told], list[Told]]:
    async def run(clock: Clock) -> list[Told]:
        chance, due_s = random.Random(1), SETTLED_S / 2
        async with serving(clock, costs=h100) as client:
            asking = [
                client.ask(random_tokens(n, 500), 200, priority=LOWEST_PRIORITY)
                for n in range(num_bulk)
            ]
            for n in range(num_chats):
                due_s += chance.expovariate(2)
                asking.append(client.ask_at(due_s, random_tokens(num_bulk + n, 200), 100))
            return await asyncio.gather(*asking)

    with pytest.MonkeyPatch.context() as patched:
        answers = simulate(patched, run)
    return answers[:num_bulk], answers[num_bulk:]


def by_length(order: Order) -> list[dict[str, Any]]:
    """A row for each class of lengths."""
    rows: dict[int, list[dict[str, float]]] = defaultdict(list)
    for seed in SEEDS:
        ttfts: dict[int, list[float]] = defaultdict(list)
        for told, num in _of_all_lengths(order, seed):
            ttfts[next(most for most in LENGTHS if num <= most)].append(told.ttft_s)
        for most, seconds in ttfts.items():
            rows[most].append({**_quantiles(seconds), "max": max(seconds), "num": len(seconds)})
    return [
        {"up_to_tokens": most}
        | {key: round(median(row[key] for row in rows[most]), 3) for key in rows[most][0]}
        for most in sorted(rows)
    ]


def _of_all_lengths(order: Order, seed: int) -> list[tuple[Told, int]]:
    async def run(clock: Clock) -> list[tuple[Told, int]]:
        chance, due_s, asking, lengths = random.Random(seed), 0.0, [], []
        async with serving(clock, own_order=order, costs=h100) as client:
            while (due_s := due_s + chance.expovariate(RATE)) < SECONDS:
                lengths.append(
                    int(min(LENGTHS[-1], max(16, chance.lognormvariate(math.log(1500), 1.3))))
                )
                prompt = random_tokens(len(lengths), lengths[-1])
                asking.append(client.ask_at(due_s, prompt, 100))
            return [*zip(await asyncio.gather(*asking), lengths, strict=True)]

    with pytest.MonkeyPatch.context() as patched:
        return simulate(patched, run)


def _quantiles(seconds: Sequence[float]) -> dict[str, float]:
    return {f"p{at}": round(quantile(seconds, at / 100), 3) for at in (50, 90, 99)}


if __name__ == "__main__":
    main()
