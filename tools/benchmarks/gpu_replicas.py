"""Replicas on this machine's GPUs: throughput beside one, and routing by prefix.

    python -m tools.benchmarks.gpu_replicas [--model 20b|120b] [--folder DIR] [--json FILE]

Writes a random checkpoint of the true shape and starts one engine process for each GPU that
CUDA_VISIBLE_DEVICES leaves (two at most), as `harmonium serve` does. Each figure is told as soon as
it is known, and one JSON line at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import cycle
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import torch

from engines.base import EngineRequest, TokenEvent
from engines.native.backends.cuda.offline.published import gpt_oss
from engines.process.client import EngineClient
from tools.benchmarks.gpu_disk import Run, prompt_of
from tools.benchmarks.gpu_http import read_together
from tools.benchmarks.replicas import PROMPT, Replicas, gpus, request_of, served, written
from tools.benchmarks.startup import serving

PROFILE: Final = "native-hopper-mxfp4-tp1-pp1-throughput"
ANSWER, STREAMS = 512, 256  # of one GPU
# A system prompt of all, then turns of a user's tokens and an answer's, with time to think between.
CONVERSATIONS, TURNS, SYSTEM, USER, REPLY, THINK_S = 96, 6, 256, 200, 64, 1.0

Generate = Callable[[EngineRequest], AsyncIterator[TokenEvent]]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tools.benchmarks.gpu_replicas", description=__doc__
    )
    parser.add_argument("--model", choices=["20b", "120b"], default="20b")
    parser.add_argument("--folder", type=Path, help="for the checkpoint and cache; kept if given")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="harmonium-replicas-"))
    run = Run()
    try:
        asyncio.run(_measure(run, folder, arguments.model))
    finally:
        if arguments.folder is None:
            shutil.rmtree(folder, ignore_errors=True)
        line = {
            "gpus": [torch.cuda.get_device_name(i) for i in range(len(gpus()))],
            "torch": torch.__version__,
            "cpus": os.cpu_count(),
            "model": arguments.model,
            **run.found,
        }
        print(json.dumps(line))
        if arguments.json:
            arguments.json.write_text(json.dumps(line, indent=1) + "\n")


async def _measure(run: Run, folder: Path, model: str) -> None:
    vocab_size = gpt_oss(model).vocab_size
    await run.part("start_checkpoint", lambda: written(folder, model))
    started = Replicas()
    if await run.part("start_replicas", lambda: started.start(folder)):
        try:
            addresses = [supervisor.address for supervisor in started.supervisors]
            sides = {"first": addresses[:1], "second": addresses[1:], "all": addresses}
            for name, side in sides.items():
                offline = partial(_offline, side, len(addresses), vocab_size)
                await run.part(f"offline_{name}", partial(asyncio.to_thread, offline))
            _compare(run.found)
            await run.part("routing", lambda: _routing(addresses, vocab_size))
        finally:
            await started.stop()
    await run.part("start_http", lambda: asyncio.to_thread(_http, folder, model))


# Throughput.


def _offline(addresses: list[str], num_readers: int, vocab_size: int) -> dict[str, Any]:
    """Tokens a second of all requests, from the first's start to the last's end."""
    streams = STREAMS * len(addresses)
    with ProcessPoolExecutor(num_readers, get_context("spawn")) as readers:
        rates = [_rate(readers, addresses, num_readers, vocab_size, seed) for seed in (1, 2, 3)]
    return {
        "streams": streams, "prompt": PROMPT, "answer": ANSWER,
        "tokens_per_s": [round(rate) for rate in rates[1:]],
    }  # fmt: skip


def _compare(found: dict[str, Any]) -> None:
    """Two GPUs beside one, best runs; nothing where a part failed."""
    rates = {
        name: found[f"offline_{name}"].get("tokens_per_s") for name in ("first", "second", "all")
    }
    if all(rates.values()):
        first, second, together = (max(each) for each in rates.values())
        found["all_over_first"] = round(together / first, 3)
        found["all_over_mean_of_one"] = round(2 * together / (first + second), 3)
        print("all over first", found["all_over_first"], flush=True)


def _rate(
    readers: ProcessPoolExecutor, addresses: list[str], num_readers: int, vocab_size: int, seed: int
) -> float:
    """As many reading processes for one engine as for two, as API processes are."""
    streams = STREAMS * len(addresses) // num_readers
    start_at = time.monotonic() + 1.5  # they connect and make their prompts first
    jobs = [
        readers.submit(_read, addresses, streams, vocab_size, 1000 * seed + number, start_at)
        for number in range(num_readers)
    ]
    ends = [job.result(timeout=120) for job in jobs]
    return num_readers * streams * ANSWER / (max(ends) - start_at)


def _read(addresses: list[str], streams: int, vocab_size: int, seed: int, start_at: float) -> float:
    """In a process of its own: when the last answer ended."""

    async def read() -> float:
        requests = [
            request_of(f"{seed}-{n}", prompt_of(seed * 997 + n, PROMPT, vocab_size), ANSWER, n)
            for n in range(streams)
        ]
        async with served([EngineClient(address) for address in addresses]) as engine:
            await asyncio.sleep(max(0.0, start_at - time.monotonic()))
            nums = await asyncio.gather(*(_count(engine.generate, each) for each in requests))
            assert set(nums) == {ANSWER}, f"answers of {set(nums)} tokens"
            return time.monotonic()

    return asyncio.run(read())


async def _count(generate: Generate, request: EngineRequest) -> int:
    num_tokens = 0
    async for event in generate(request):
        num_tokens += len(event.token_ids)
    return num_tokens


# Routing.


@dataclass(slots=True)
class _Turns:
    """What a way of routing gave to conversations."""

    num_prompt: int = 0
    num_cached: int = 0
    first_s: list[float] = field(default_factory=list)  # of turns after the first

    def told(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.num_prompt,
            "hit_rate": round(self.num_cached / self.num_prompt, 4),
            "first_token_ms_median": round(statistics.median(self.first_s) * 1e3, 1),
            "first_token_ms_p95": round(statistics.quantiles(self.first_s, n=20)[-1] * 1e3, 1),
        }


async def _routing(addresses: list[str], vocab_size: int) -> dict[str, Any]:
    """The same conversations routed by prefix and in turn, each with caches of its own."""
    found: dict[str, Any] = {
        "conversations": CONVERSATIONS, "turns": TURNS, "system": SYSTEM, "user": USER,
        "reply": REPLY,
    }  # fmt: skip
    async with served([EngineClient(address) for address in addresses]) as engine:
        found["by_prefix"] = (await _talk(engine.generate, "by prefix", vocab_size)).told()
    clients = [EngineClient(address) for address in addresses]
    await asyncio.gather(*(client.start() for client in clients))
    turn = cycle(clients)
    found["in_turn"] = (await _talk(lambda r: next(turn).generate(r), "turn", vocab_size)).told()
    await asyncio.gather(*(client.stop() for client in clients))
    return found


async def _talk(generate: Generate, salt: str, vocab_size: int) -> _Turns:
    turns, system = _Turns(), prompt_of(7, SYSTEM, vocab_size)

    async def converse(number: int) -> None:
        draw, known = random.Random(number), list(system)
        for turn in range(TURNS):
            await asyncio.sleep(draw.uniform(0, THINK_S))
            known += prompt_of(100 * number + turn, USER, vocab_size)
            request = request_of(f"{number}-{turn}", known, REPLY, number)
            began, first = time.perf_counter(), True
            async for event in generate(replace(request, cache_salt=salt)):
                known += event.token_ids
                if first:
                    turns.num_prompt += len(request.prompt_token_ids)
                    turns.num_cached += event.num_cached_tokens
                    if turn:
                        turns.first_s.append(time.perf_counter() - began)
                    first = False

    await asyncio.gather(*(converse(number) for number in range(CONVERSATIONS)))
    return turns


# One command.


def _http(folder: Path, model: str) -> dict[str, Any]:
    """`harmonium serve` with as many replicas, from what the engines have left in the cache."""
    os.environ |= {
        "NIM_AUTH": "off",
        "NIM_MODEL_NAME": f"gpt-oss-{model}",
        "NIM_MODEL_PATH": str(folder / "model"),
        "NIM_MODEL_PROFILE": PROFILE,
        "NIM_SERVED_MODEL_NAME": "gpt-oss",
        "NIM_REPLICAS": str(len(gpus())),
    }
    began = time.perf_counter()
    with serving(folder / "cache") as url:
        ready_s = time.perf_counter() - began
        port, streams = int(url.rpartition(":")[2]), STREAMS * len(gpus())
        found = [asyncio.run(read_together(port, streams)) for _ in range(2)]
    return {"ready_s": round(ready_s, 2), "streams": found[-1]}


if __name__ == "__main__":
    main()
