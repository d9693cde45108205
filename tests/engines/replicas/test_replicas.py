"""Two engine processes as one engine: a death of one costs nobody an answer."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from engines.base import EngineRequest, SamplingParams
from engines.errors import EngineDead, RequestQuarantined
from engines.fleet import Fleet
from engines.process.supervisor import EngineSupervisor, RestartPolicy
from engines.recovery.crash_records import CrashRecords
from engines.recovery.guarded import GuardedEngine
from engines.spec import EngineSpec

POISON = 666
QUICK = RestartPolicy(first_delay_s=0.05)

Make = Callable[[EngineSpec], Awaitable[tuple[list[EngineSupervisor], GuardedEngine]]]


@pytest.fixture
async def make(no_leaks: None) -> AsyncIterator[Make]:
    """Two replicas of one spec and what serves on them."""
    supervisors: list[EngineSupervisor] = []
    engines: list[GuardedEngine] = []

    async def start(spec: EngineSpec) -> tuple[list[EngineSupervisor], GuardedEngine]:
        supervisors.extend(EngineSupervisor(spec, QUICK) for _ in range(2))
        await asyncio.gather(*(supervisor.start() for supervisor in supervisors))
        fleet = Fleet([supervisor.client() for supervisor in supervisors])
        folder = fleet.replicas[0].engine.folder / "suspects"
        engines.append(GuardedEngine(fleet, CrashRecords(folder, 600.0)))
        await engines[0].start()
        return supervisors, engines[0]

    yield start
    for engine in engines:
        await engine.stop()
    for supervisor in supervisors:
        await supervisor.stop(drain_timeout_s=0.0, grace_s=5.0)


def scripted(**options: Any) -> EngineSpec:
    return EngineSpec("tests.fake", {"script": [11, 12, 13], "step_s": 0.005, **options})


def request_of(*prompt: int, max_tokens: int = 60, **sampling: Any) -> EngineRequest:
    return EngineRequest(f"r-{prompt}", prompt, SamplingParams(max_tokens, **sampling))


async def read(
    engine: GuardedEngine, request: EngineRequest, begun: asyncio.Event | None = None
) -> tuple[int, ...]:
    token_ids: tuple[int, ...] = ()
    async for event in engine.generate(request):
        token_ids += event.token_ids
        if begun is not None and len(token_ids) > 5:
            begun.set()
    return token_ids


async def killed_in_the_middle(
    engine: GuardedEngine, victim: EngineSupervisor, requests: list[EngineRequest]
) -> list[tuple[int, ...]]:
    """What the requests bring when a replica is killed under them all."""
    begun = [asyncio.Event() for _ in requests]
    reading = [
        asyncio.create_task(read(engine, request, event))
        for request, event in zip(requests, begun, strict=True)
    ]
    async with asyncio.timeout(60):
        await asyncio.gather(*(event.wait() for event in begun))
        assert victim.pid is not None
        os.kill(victim.pid, signal.SIGKILL)
        return await asyncio.gather(*reading)


async def test_streams_of_a_killed_replica_go_on_on_the_other(make: Make) -> None:
    supervisors, engine = await make(scripted())
    requests = [request_of(number, max_tokens=200) for number in range(8)]
    answers = await killed_in_the_middle(engine, supervisors[0], requests)
    assert answers == [((11, 12, 13) * 67)[:200]] * 8


@pytest.mark.slow  # tests/e2e does it to a whole server
async def test_nano_says_the_same_greedy_and_seeded_when_a_replica_is_killed(
    make: Make, nano_checkpoint: Path
) -> None:
    spec = EngineSpec("native", {"num_threads": 1}, {"max_num_seqs": 8}, str(nano_checkpoint))
    supervisors, engine = await make(spec)
    prompt = tuple(range(1000, 1100))
    ban = {"logit_bias": {200002: -100.0, 200007: -100.0, 200012: -100.0}}
    # Without min_p a draw may fall among the 180,000 tokens that nano never writes: which of them
    # it is, last bits of the cumulated distribution decide, and so does the batch.
    seeded: dict[str, Any] = {"max_tokens": 60, "min_p": 0.01, **ban}
    requests = [
        request_of(*prompt, number, temperature=temperature, seed=number, **seeded)
        for number in range(3)
        for temperature in (0.0, 1.5)
    ]
    undisturbed = [await read(engine, request) for request in requests]
    assert len(set(undisturbed)) > 3
    assert await killed_in_the_middle(engine, supervisors[0], requests) == undisturbed


async def test_both_run_requests_and_their_counts_are_added(make: Make) -> None:
    _, engine = await make(scripted(max_num_seqs=4))
    reading = [asyncio.create_task(read(engine, request_of(i, max_tokens=400))) for i in range(8)]
    async with asyncio.timeout(60):
        while (await engine.stats()).num_running < 8:  # more than one of them can
            await asyncio.sleep(0.01)
    assert engine.info.max_num_seqs == 8
    assert (await engine.stats()).kv_block_size == 16
    for task in reading:
        task.cancel()
    await asyncio.wait(reading)


async def test_the_engine_is_ready_while_one_replica_is(make: Make, until: Any) -> None:
    supervisors, engine = await make(scripted())
    await supervisors[0].stop(drain_timeout_s=0.0)
    await engine.check_health()
    assert await read(engine, request_of(1, max_tokens=4)) == (11, 12, 13, 11)
    await supervisors[1].stop(drain_timeout_s=0.0)

    async def is_dead() -> bool:
        try:
            await engine.check_health()
        except EngineDead:
            return True
        return False

    await until(is_dead)


async def test_a_killer_is_convicted_whichever_replicas_it_kills(make: Make) -> None:
    fault = {"token": POISON, "kind": "kill", "after": 8}
    supervisors, engine = await make(scripted(faults=[fault]))
    innocent = [request_of(3, i, max_tokens=300) for i in range(4)]
    # One that has hardly begun when two engines die under it is taken for the killer.
    begun = [asyncio.Event() for _ in innocent]

    async def kill() -> tuple[int, ...]:
        await asyncio.gather(*(each.wait() for each in begun))
        return await read(engine, request_of(POISON))

    async with asyncio.timeout(60):
        killer, *answers = await asyncio.gather(
            kill(), *map(read, [engine] * 4, innocent, begun), return_exceptions=True
        )
    assert isinstance(killer, RequestQuarantined)
    assert answers == [(11, 12, 13) * 100] * 4
    assert sum(supervisor.num_restarts for supervisor in supervisors) <= 3


async def test_counts_stay_there_and_never_go_back_while_one_replica_is_silent(
    make: Make,
) -> None:
    supervisors, engine = await make(scripted())
    await asyncio.gather(*(read(engine, request_of(number)) for number in range(8)))
    before = await engine.stats()
    assert before.generated_tokens == 8 * 60
    pid = supervisors[0].pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        async with asyncio.timeout(60):
            assert (await engine.stats()).generated_tokens == before.generated_tokens
    finally:
        os.kill(pid, signal.SIGCONT)
