"""Workers by the real library that die, end and join while they answer (make test-dynamo)."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import replace
from typing import Any

import pytest

from engines.base import EngineRequest
from engines.errors import (
    RequestQuarantined,
)
from engines.fleet import Fleet
from engines.grammar.tree import Regex
from engines.process.client import EngineClient
from engines.recovery.crash_records import CrashRecords
from engines.recovery.guarded import GuardedEngine
from parts.dynamo.network.supervisor import WorkerSupervisor
from tests.engines.contract.contenders import Checkpoint
from tests.parts.dynamo.network.answers import (
    POISON,
    Answer,
    kill,
    read,
    request_of,
    running_at,
    script,
)
from tests.parts.dynamo.network.deployment import (
    Deployment,
    until,
    until_capacity,
)

pytestmark = pytest.mark.dynamo

CUTS = int(os.environ.get("TEST_CUTS", "5"))  # of each kind of answer
STREAMS_S = float(os.environ.get("TEST_STREAMS_S", "20"))

KINDS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "seed": {"temperature": 1.0, "seed": 5},
    "penalties": {"presence_penalty": 0.8, "frequency_penalty": 0.7, "repetition_penalty": 1.2},
    "grammar": {"temperature": 1.0, "seed": 6, "grammar": Regex("[a-f ]{60,80}")},
}


@pytest.mark.parametrize("kind", list(KINDS))
async def test_a_killed_workers_answers_go_on_as_the_engine_gives_them(
    deployed: Deployment, checkpoint: Checkpoint, kind: str
) -> None:
    """The tokens shown before the cut, then exactly what the engine gives for them."""
    spec = checkpoint.spec("native", {"num_threads": 1})
    workers = [await deployed.worker(spec) for _ in range(2)]
    engines = [await running_at(worker) for worker in workers]  # they outlive their workers
    front = await deployed.front()
    wishes = dict(KINDS[kind])
    grammar = wishes.pop("grammar", None)
    num_cut = 0
    for number in range(4 * CUTS):
        await until_capacity(front, 16)
        prompt = tuple((number * 7 + i) % 256 for i in range(20))
        request = replace(
            request_of(60, prompt, **wishes),
            grammar=grammar,
            stop_token_ids=(1,) if grammar else (),
        )
        answer = await read_cut(front, request, 3 + number % 20, workers, engines)
        for cut in answer.cuts:
            again = replace(request, generated_token_ids=answer.ids[:cut])
            assert answer.ids == answer.ids[:cut] + (await read(engines[0], again)).ids
        num_cut += len(answer.cuts)
        if num_cut == CUTS:
            break
    for engine in engines:
        await engine.stop()
    assert num_cut == CUTS


async def read_cut(
    front: EngineClient,
    request: EngineRequest,
    at: int,
    workers: list[WorkerSupervisor],
    engines: list[EngineClient],
) -> Answer:
    """Read an answer whose worker is killed after so many tokens."""
    seen: list[int] = []
    reading = asyncio.create_task(read(front, request, seen))
    await until(lambda: len(seen) >= at or reading.done())
    # All are asked before one is killed: the answer soon runs at another one.
    found = [(await engine.stats()).num_running for engine in engines]
    for worker, num_running in zip(workers, found, strict=True):
        if num_running:
            kill(worker)
            break  # it goes on at the other, which is not to die as well
    return await reading


async def test_a_request_that_kills_its_worker_is_quarantined_at_the_second_death(
    deployed: Deployment,
) -> None:
    faults = [{"token": POISON, "kind": "kill", "after": 3}]
    workers = [await deployed.worker(faults=faults) for _ in range(3)]
    front = await deployed.front()
    await until_capacity(front, 24)
    others = [asyncio.create_task(read(front, request_of(150))) for _ in range(6)]
    with pytest.raises(RequestQuarantined):
        await read(front, request_of(prompt=(POISON, 1)))
    assert [await each for each in others] == [
        Answer(script(150), each.result().cuts) for each in others
    ]
    assert sum(worker.engine.num_restarts for worker in workers) == 2
    with pytest.raises(RequestQuarantined):
        await read(front, request_of(prompt=(POISON, 1)))
    assert sum(worker.engine.num_restarts for worker in workers) == 2
    assert (await read(front, request_of(5))).ids == script(5)


async def test_streams_outlive_kills_drains_and_joins(deployed: Deployment) -> None:
    """8 streams all the time: no failed answer, and the capacity is that of the workers."""
    workers = [await deployed.worker() for _ in range(2)]
    front = await deployed.front()
    await until_capacity(front, 16)
    end_s = time.monotonic() + STREAMS_S
    num_answers = 0

    async def stream() -> None:
        nonlocal num_answers
        while time.monotonic() < end_s:
            assert (await read(front, request_of(120))).ids == script(120)
            num_answers += 1

    streams = asyncio.gather(*(stream() for _ in range(8)))
    while time.monotonic() < end_s - 5 and not streams.done():
        killed = workers[0].pid
        kill(workers[0])
        await until(lambda: workers[0].pid not in (None, killed))  # noqa: B023
        await until_capacity(front, 16)  # its parent started another
        await workers.pop().stop(30.0)
        await until_capacity(front, 8)
        workers.append(await deployed.worker())
        await until_capacity(front, 16, within_s=2.0)
    await streams
    assert num_answers > 8


async def test_a_worker_that_ends_finishes_its_answers(deployed: Deployment) -> None:
    workers = [await deployed.worker() for _ in range(2)]
    front = await deployed.front()
    await until_capacity(front, 16)
    seen: list[int] = []
    answers = [asyncio.create_task(read(front, request_of(150), seen)) for _ in range(6)]
    await until(lambda: len(seen) > 20)
    await workers[0].stop(30.0)
    assert [await each for each in answers] == [Answer(script(150))] * 6  # none was restarted
    await until_capacity(front, 8)


async def test_a_worker_whose_engine_dies_leaves_and_comes_back(deployed: Deployment) -> None:
    workers = [await deployed.worker() for _ in range(2)]
    front = await deployed.front()
    await until_capacity(front, 16)
    pid = workers[0].engine.pid
    assert pid is not None
    answers = [asyncio.create_task(read(front, request_of(100))) for _ in range(6)]
    await asyncio.sleep(0.3)
    os.kill(pid, signal.SIGKILL)
    assert all([(await each).ids == script(100) for each in answers])
    await until_capacity(front, 16)


async def test_without_any_worker_the_front_is_dead_and_goes_on_with_the_next(
    deployed: Deployment,
) -> None:
    worker = await deployed.worker()
    front = await deployed.front()
    guarded = GuardedEngine(
        Fleet([front]), CrashRecords(front.folder / "suspects", 600.0), restart_timeout_s=60.0
    )
    seen: list[int] = []
    reading = asyncio.create_task(read(guarded, request_of(200), seen))
    await until(lambda: len(seen) > 20)
    await worker.stop(0.0)
    await until(lambda: not front.is_ready, within_s=60.0)
    await deployed.worker()
    assert (await reading).ids == script(200)
