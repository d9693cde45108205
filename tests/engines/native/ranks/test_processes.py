"""An engine whose ranks are processes: the same answers, and one end for all of them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from engines.base import EngineRequest, SamplingParams
from engines.errors import EngineStartError
from engines.fleet import Fleet
from engines.native.backends.cpu.ranks.team import Team
from engines.native.config import NativeConfig
from engines.native.engine import NativeEngine
from engines.process.supervisor import EngineSupervisor, RestartPolicy
from engines.recovery.crash_records import CrashRecords
from engines.recovery.guarded import GuardedEngine
from engines.spec import EngineSpec
from tests.engines.native.ranks.conftest import config_of

PROMPTS = [tuple(range(100 * num, 101 * num)) for num in (40, 10, 80)]
NO_END = {200002: -100.0, 200007: -100.0, 200012: -100.0}
SEEDED: dict[str, Any] = {"temperature": 1.5, "seed": 3, "min_p": 0.01}
KINDS: list[dict[str, Any]] = [
    {},
    SEEDED,
    {"logprobs": 3},
    {"frequency_penalty": 2.0, "presence_penalty": 2.0},
    {**SEEDED, "top_p": 0.9, "top_k": 20},
]


def request_of(prompt: tuple[int, ...], max_tokens: int = 16, **sampling: Any) -> EngineRequest:
    given = {"temperature": 0.0, "logit_bias": NO_END, **sampling}
    return EngineRequest(f"{prompt}{sampling}", prompt, SamplingParams(max_tokens, **given))


REQUESTS = [request_of(PROMPTS[i % len(PROMPTS)], **kind) for i, kind in enumerate(KINDS)]


async def read(engine: Any, request: EngineRequest, begun: asyncio.Event | None = None) -> Any:
    token_ids: tuple[int, ...] = ()
    async for event in engine.generate(request):
        token_ids += event.token_ids
        if begun is not None and len(token_ids) > 5:
            begun.set()
    return token_ids


async def answers(folder: Path, size: int, num_blocks: int) -> list[tuple[int, ...]]:
    """Of every way of sampling, all at once and in chunks."""
    limits = {"max_num_batched_tokens": 32, "max_model_len": 160, "num_kv_blocks": num_blocks}
    engine = NativeEngine(config_of(folder, size, by_expert=size == 4, **limits))
    await engine.start()
    try:
        first = await read(engine, REQUESTS[0])
        found = await asyncio.gather(*(read(engine, request) for request in REQUESTS))
        assert found[0] == first
        stats = await engine.stats()
        assert stats.prefix_cache_hits > 0
        assert (stats.num_preemptions > 0) == (num_blocks < 40)
        return found
    finally:
        await engine.stop()


@pytest.fixture(scope="session")
def alone(nano_checkpoint: Path) -> list[tuple[int, ...]]:
    found = asyncio.run(answers(nano_checkpoint, 1, num_blocks=200))
    assert len(set(found)) == len(KINDS)
    return found


def children() -> set[psutil.Process]:
    return set(psutil.Process().children())


@pytest.mark.parametrize("size", [2, 4])
def test_nano_answers_the_same_on_several_ranks(
    size: int, nano_checkpoint: Path, alone: list[tuple[int, ...]]
) -> None:
    """In chunks, from the prefix cache, after preemptions; greedy, seeded, filtered, penalised."""
    others = children()  # servers of other tests
    assert asyncio.run(answers(nano_checkpoint, size, num_blocks=24)) == alone
    assert children() == others


Start = Callable[[EngineSpec], Awaitable[tuple[EngineSupervisor, GuardedEngine]]]


@pytest.fixture
async def start(no_leaks: None) -> AsyncIterator[Start]:
    supervisors: list[EngineSupervisor] = []
    engines: list[GuardedEngine] = []

    async def begin(spec: EngineSpec) -> tuple[EngineSupervisor, GuardedEngine]:
        supervisors.append(EngineSupervisor(spec, RestartPolicy(first_delay_s=0.05)))
        await supervisors[0].start()
        fleet = Fleet([supervisors[0].client()])
        folder = fleet.replicas[0].engine.folder / "suspects"
        engines.append(GuardedEngine(fleet, CrashRecords(folder, 600.0)))
        await engines[0].start()
        return supervisors[0], engines[0]

    yield begin
    for engine in engines:
        await engine.stop()
    for supervisor in supervisors:
        await supervisor.stop(drain_timeout_s=0.0, grace_s=5.0)


async def test_streams_continue_when_a_rank_is_killed(nano_checkpoint: Path, start: Start) -> None:
    spec = EngineSpec(
        "native",
        {"num_threads": 1},
        {"max_num_seqs": 8, "max_model_len": 1024},
        str(nano_checkpoint),
        tensor_parallel=2,
    )
    supervisor, engine = await start(spec)
    requests = [request_of((*PROMPTS[1], number), 40, **KINDS[number % 2]) for number in range(4)]
    undisturbed = [await read(engine, request) for request in requests]
    first_pid = supervisor.pid
    begun = [asyncio.Event() for _ in requests]
    reading = [
        asyncio.create_task(read(engine, request, event))
        for request, event in zip(requests, begun, strict=True)
    ]
    async with asyncio.timeout(300):
        await asyncio.gather(*(event.wait() for event in begun))
        os.kill(_rank_of(first_pid), signal.SIGKILL)
        assert await asyncio.gather(*reading) == undisturbed
    assert supervisor.pid != first_pid  # the whole engine was started again


async def test_no_rank_outlives_a_killed_engine(nano_checkpoint: Path, start: Start) -> None:
    supervisor, _ = await start(
        EngineSpec(
            "native",
            {"num_threads": 1},
            {"max_model_len": 1024},
            str(nano_checkpoint),
            tensor_parallel=2,
        )
    )
    rank = psutil.Process(_rank_of(supervisor.pid))
    rank.suspend()
    assert supervisor.pid is not None
    os.kill(supervisor.pid, signal.SIGKILL)
    async with asyncio.timeout(60):
        while rank.is_running() and rank.status() != psutil.STATUS_ZOMBIE:
            await asyncio.sleep(0.01)


def _rank_of(pid: int | None) -> int:
    [rank] = [
        each.pid
        for each in psutil.Process(pid).children()
        if "engines.native.backends.cpu.ranks.host" in each.cmdline()
    ]
    return rank


def test_a_rank_that_does_not_start_is_told_before_weights_are_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    config = NativeConfig(tmp_path, tensor_parallel=2)  # no weights lie there
    others = children()
    with pytest.raises(EngineStartError, match=r"^rank 1 of 2 ended with exit status 1; what it"):
        Team(config, python="/bin/false")
    assert children() == others
