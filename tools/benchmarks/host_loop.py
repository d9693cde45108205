"""CPU of the native engine's host for each row and step, over a device that computes nothing.

`python -m tools.benchmarks.host_loop [--rows 128 512] [--repeats 3]`

Rows decode beside each other; each measurement has a process of its own. `loop` is the step loop
alone; `process` is all that the engine's process does for a token: the loop, its queue, the events
and the messages to two API workers. The device takes `STEP_S` for a step and is never what is
measured: CPU time is, of the process that decodes, while no request begins.

`--guided 32` has so many rows of 128 follow a JSON schema in gpt-oss's vocabulary, and measures the
gaps between the tokens of the others. The device takes any token that is allowed.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import aclosing
from itertools import count, pairwise
from pathlib import Path
from random import Random
from typing import Any, Final

from engines.base import EngineRequest, SamplingParams
from engines.errors import EngineError
from engines.grammar.tree import JsonSchema
from engines.native.backends.base import Batch, Capacity, Sampled, TokenMask, TokenMasks
from engines.native.config import NativeConfig
from engines.native.engine import NativeEngine
from engines.native.grammar.compiler import Compiled, Guide, written
from engines.native.grammar.library import compiled
from engines.native.grammar.vocabulary import load_tokenizer
from engines.native.loop.block_manager import BlockManager
from engines.native.loop.core import EngineCore
from engines.native.loop.limits import SchedulerLimits
from engines.native.loop.scheduler import Scheduler
from engines.native.step_costs import StepCosts
from engines.process.client import EngineClient
from engines.process.server import EngineServer
from engines.process.wire import HEARTBEAT_S, SWITCH_INTERVAL_S
from service.harmony import vocabulary
from tools.benchmarks.report import Row, median, show

VOCAB_SIZE: Final = 201_088
NUM_PROMPT: Final = 128
NUM_STEPS: Final = 256  # that are measured
NUM_CLIENTS: Final = 2
NUM_ROWS: Final = 128  # with guided ones
NUM_GAPS: Final = 600
GUIDED_STEP_S: Final = 0.007
SCHEMA: Final = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "items": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "id": {"type": "integer"},
                    "label": {"type": "string", "maxLength": 40},
                    "kind": {"enum": ["new", "used", "as it was"]},
                    "price": {"type": "number"},
                },
                "required": ["id", "label", "kind", "price"],
                "additionalProperties": False,
            },
        },
        "note": {"type": "string"},
    },
    "required": ["name", "items", "note"],
    "additionalProperties": False,
}
STEP_S: Final = 0.014
MOST_US: Final = 4.0  # asked for, at 512 rows


class Device:
    """Steps of nothing, one after another; implements engines.native.backends.base.Backend."""

    access = None

    def __init__(self, step_s: float = 0.0) -> None:
        self.capacity = Capacity(70_000, 64, 131_072, takes_steady=True)
        self._step_s, self.free_s = step_s, 0.0
        self.random = Random(0)

    def close(self) -> None: ...

    def launch(self, batch: Batch) -> DeviceStep:
        self.free_s = max(self.free_s, time.monotonic()) + self._step_s
        num_steady = 0 if batch.steady is None else len(batch.steady.slots)
        return DeviceStep(sum(row.is_last for row in batch.rows), num_steady, self.free_s, self)


class DeviceStep:
    """Where rows are masked, it is sampled once it has its masks, if it was computed by then."""

    def __init__(self, num: int, num_steady: int, done_s: float, device: Device) -> None:
        self._num, self._num_steady, self._done_s = num, num_steady, done_s
        self._device = device
        self._allowed: dict[int, int] = {}

    def mask(self, masks: Mapping[int, TokenMasks]) -> None:
        self._allowed = {row: _one_of(mask[0], self._device.random) for row, mask in masks.items()}
        self._done_s = max(self._done_s, time.monotonic())
        self._device.free_s = max(self._device.free_s, self._done_s)

    def collect(self) -> list[Sampled]:
        if (left_s := self._done_s - time.monotonic()) > 0:
            time.sleep(left_s)
        return [Sampled((self._allowed.get(i, 1000 + i),)) for i in range(self._num)]

    def steady_tokens(self) -> list[int]:
        return [*range(1000, 1000 + self._num_steady)]


def _one_of(mask: TokenMask, random: Random) -> int:
    """A token that the mask allows."""
    places = mask.nonzero()[0]
    place = int(places[random.randrange(len(places))])
    word = int(mask[place]) & 0xFFFFFFFF
    return 32 * place + (word & -word).bit_length() - 1


def core_of(num_rows: int, step_s: float) -> EngineCore:
    limits = SchedulerLimits(131_072, num_rows, 8192)
    scheduler = Scheduler(BlockManager(70_000, 64, 128), limits)
    return EngineCore(Device(step_s), scheduler, VOCAB_SIZE, is_overlapped=True)


def request(number: int) -> EngineRequest:
    """One that goes on for longer than is measured."""
    prompt = tuple((number * 7919 + i * 31) % 200_000 for i in range(NUM_PROMPT + number % 64))
    return EngineRequest(str(number), prompt, SamplingParams(4096), (200_002, 200_012))


def loop_us(num_rows: int) -> float:
    """CPU of the step loop for each row and step, in this process."""
    core = core_of(num_rows, 0.0)
    for number in range(num_rows):
        core.scheduler.add(request(number))
    while core.stats().generated_tokens < 8 * num_rows:
        core.advance()
    _settle()
    before, began_s = core.stats(), time.process_time()
    for _ in range(NUM_STEPS):
        core.advance()
    spent_s = time.process_time() - began_s
    return 1e6 * spent_s / (core.stats().generated_tokens - before.generated_tokens)


def _settle() -> None:
    """As engines/process/host.py does once the model is loaded."""
    gc.collect()
    gc.freeze()


def gaps_ms(num_guided: int) -> list[float]:
    """Between the tokens of those rows that follow no grammar."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    core = core_of(NUM_ROWS, GUIDED_STEP_S)
    core.scheduler.costs = StepCosts.from_dict(
        {
            "decode": {1: GUIDED_STEP_S, NUM_ROWS: GUIDED_STEP_S},
            "prefill": {64: 1e-3, 8192: 0.1},
            "per_context": 0.0,
            "per_pair": 0.0,
            "round_tokens": 384,
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = load_tokenizer(vocabulary.write_vocabulary(Path(folder)), VOCAB_SIZE)
    made = Compiled(compiled(tokenizer, written(JsonSchema(json.dumps(SCHEMA)))), 1)
    plain = [core.scheduler.add(request(number)) for number in range(NUM_ROWS - num_guided)]

    numbers = count(NUM_ROWS)

    def add_guided() -> None:
        core.scheduler.add(request(next(numbers)), Guide(made, VOCAB_SIZE - 1, 200_002))

    for _ in range(num_guided):
        add_guided()
    times: list[float] = []
    first = plain[0]
    _settle()
    while len(times) < NUM_GAPS:
        num = len(first.token_ids)
        _, outcomes = core.advance()
        for sequence, outcome in outcomes:
            if sequence.guide is not None and (
                isinstance(outcome, EngineError) or outcome.finish_reason is not None
            ):
                add_guided()  # another answer in place of one that has ended
        if len(first.token_ids) > num and first.num_generated_tokens > 8:
            times.append(time.monotonic())
    return [1000 * (b - a) for a, b in pairwise(times)]


async def serve(address: str, num_rows: int) -> None:
    """An engine's process; each line of stdin is answered by its CPU time and counts."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    config = NativeConfig(Path(), max_num_seqs=num_rows)
    engine = NativeEngine(config, lambda _: core_of(num_rows, STEP_S * max(1, num_rows // 512)))
    server = EngineServer(address)
    await engine.start()
    server.serve(engine)
    _settle()
    beating = asyncio.create_task(_beat(server))
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, sys.stdin.readline):
        stats = await engine.stats()
        counts = time.process_time(), stats.num_steps, stats.generated_tokens
        print(json.dumps(counts), flush=True)
    beating.cancel()


async def _beat(server: EngineServer) -> None:
    while True:
        server.beat()
        await asyncio.sleep(HEARTBEAT_S)


async def process_us(num_rows: int) -> float:
    """CPU of a whole engine process for each row and step."""
    with tempfile.TemporaryDirectory(prefix="bench") as folder:
        address = f"ipc://{folder}/engine.sock"
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", __spec__.name, "--serve", address, "--rows", str(num_rows)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            return await _measured(process, address, num_rows)
        finally:
            process.kill()
            await process.wait()


async def _measured(process: asyncio.subprocess.Process, address: str, num_rows: int) -> float:
    clients = [EngineClient(address) for _ in range(NUM_CLIENTS)]
    await asyncio.gather(*(client.start() for client in clients))
    reads = [
        asyncio.create_task(_read(clients[number % NUM_CLIENTS], number))
        for number in range(num_rows)
    ]
    while (before := await _counts(process))[2] < 8 * num_rows:
        await asyncio.sleep(0.05)
    while (after := await _counts(process))[1] < before[1] + NUM_STEPS:
        await asyncio.sleep(0.05)
    for read in reads:
        read.cancel()
    await asyncio.gather(*reads, return_exceptions=True)
    for client in clients:
        await client.stop()
    return float(1e6 * (after[0] - before[0]) / (after[2] - before[2]))


async def _read(client: EngineClient, number: int) -> None:
    async with aclosing(client.generate(request(number))) as events:
        async for _ in events:
            pass


async def _counts(process: asyncio.subprocess.Process) -> Any:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"\n")
    return json.loads(await process.stdout.readline())


def _loop_in_a_process(num_rows: int) -> float:
    words = [sys.executable, "-m", __spec__.name, "--loop", "--rows", str(num_rows)]
    return float(subprocess.run(words, capture_output=True, check=True, text=True).stdout)


def rows(sizes: list[int], repeats: int) -> list[Row]:
    found: dict[tuple[str, int], list[float]] = {}
    for _ in range(repeats):  # in turn: what else the machine does meets all alike
        for num in sizes:
            found.setdefault(("loop", num), []).append(_loop_in_a_process(num))
            found.setdefault(("process", num), []).append(asyncio.run(process_us(num)))
    return [
        Row(
            case=f"engine's host, {what}, {num} rows",
            ours=median(values),
            unit="us CPU a row and step",
            target=f"<= {MOST_US:g}" if num >= 512 else "",
            note=f"{min(values):.2f} to {max(values):.2f}",
        )
        for (what, num), values in sorted(found.items())
    ]


def guided_rows(numbers: list[int], repeats: int) -> list[Row]:
    found: dict[int, list[list[float]]] = {num: [] for num in numbers}
    for _ in range(repeats):
        for num in numbers:
            words = [sys.executable, "-m", __spec__.name, "--gaps", str(num)]
            done = subprocess.run(words, capture_output=True, check=True, text=True)
            found[num].append(sorted(json.loads(done.stdout)))
    return [
        Row(
            case=f"gaps of plain rows, {num} of {NUM_ROWS} guided, p{percent}",
            ours=median([gaps[len(gaps) * percent // 100] for gaps in runs]),
            unit="ms",
            limit=1000 * GUIDED_STEP_S,
            target="<= 25" if percent == 99 else "",
        )
        for num, runs in found.items()
        for percent in (50, 99)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--guided", type=int, nargs="+", help="rows of 128; prints gaps instead")
    parser.add_argument("--gaps", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--loop", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.gaps is not None:
        print(json.dumps(gaps_ms(arguments.gaps)))
    elif arguments.guided:
        show(guided_rows(arguments.guided, arguments.repeats))
    elif arguments.loop:
        print(loop_us(*arguments.rows))
    elif arguments.serve is not None:
        import uvloop

        uvloop.run(serve(arguments.serve, *arguments.rows))
    else:
        show(rows(arguments.rows, arguments.repeats))


if __name__ == "__main__":
    main()
