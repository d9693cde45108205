"""The fleet of a deployment, on a stand-in of Dynamo's client: who is used, and for how much."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from engines.base import EngineInfo, EngineRequest, EngineStats, SamplingParams, TokenEvent
from engines.errors import EngineDead, NotTaken
from parts.dynamo.network import deployment as deployments
from parts.dynamo.network import worker_client
from parts.dynamo.network.deployment import Deployment
from parts.dynamo.network.prefillers import Prefillers
from parts.dynamo.network.wire import VERSION, Ask, EventWriter, State, read_question, written

REQUEST = EngineRequest("r", (1, 2), SamplingParams(max_tokens=4))


class Context:
    """What a request is cancelled by."""

    def __init__(self) -> None:
        self.stopped = asyncio.Event()

    def stop_generating(self) -> None:
        self.stopped.set()


class Worker:
    """A worker as the stand-in knows it."""

    def __init__(
        self, *, max_model_len: int = 4096, version: str = VERSION, handover: str | None = None
    ) -> None:
        info = EngineInfo("native", "1", max_model_len, 1000, 8)
        stats = EngineStats(num_running=1, generated_tokens=5)
        self.state = State(info, stats, version, handover=handover)
        self.is_gone = False
        self.contexts: list[Context] = []


class Library:
    """Dynamo's runtime, endpoint and client in one."""

    def __init__(self) -> None:
        self.workers: dict[int, Worker] = {}
        self.unlisted: set[int] = set()

    def endpoint(self, path: str) -> Library:
        return self

    async def client(self) -> Library:
        return self

    def shutdown(self) -> None:
        self.workers = {}

    def instance_ids(self) -> list[int]:
        return sorted(self.workers.keys() - self.unlisted)

    async def direct(
        self, message: str, instance_id: int, *, annotated: bool, context: Context
    ) -> AsyncIterator[Any]:
        if instance_id not in self.instance_ids() or self.workers[instance_id].is_gone:
            raise Exception("Unavailable: not found")
        worker = self.workers[instance_id]
        worker.contexts.append(context)
        return self._answer(worker, message, context)

    async def _answer(
        self, worker: Worker, message: str, context: Context
    ) -> AsyncGenerator[Any, None]:
        if isinstance(read_question(message), Ask):
            yield written(worker.state)
            return
        yield EventWriter().chunk(TokenEvent((11,)))
        while not context.stopped.is_set():
            await asyncio.sleep(0)
            if worker.is_gone:
                raise ValueError("Unavailable: Stream ended before generation completed")


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    made = Library()
    monkeypatch.setattr(deployments, "connect", lambda discovery: made)
    monkeypatch.setattr(deployments, "FOLLOW_S", 0.001)
    monkeypatch.setattr(worker_client, "LOOK_S", 0.001)
    monkeypatch.setattr(worker_client, "LOOK_AGAIN_S", 0.001)
    monkeypatch.setattr(worker_client, "new_context", Context)
    return made


@pytest.fixture
async def fleet(library: Library) -> AsyncIterator[Deployment]:
    library.workers[1] = Worker()
    made = Deployment("a.b.c", "file", lambda: None)
    await made.start()
    yield made
    await made.stop()


async def until(fleet: Deployment, max_num_seqs: int) -> None:
    async with asyncio.timeout(10):
        while fleet.info.max_num_seqs != max_num_seqs:
            await asyncio.sleep(0)


async def test_the_capacity_follows_the_workers(fleet: Deployment, library: Library) -> None:
    assert fleet.info.max_num_seqs == 8
    library.workers[2] = Worker()
    await until(fleet, 16)
    library.workers[1].is_gone = True
    await until(fleet, 8)
    library.workers[1].is_gone = False  # it was the connection
    await until(fleet, 16)
    del library.workers[2]
    await until(fleet, 8)


async def test_what_workers_counted_stays_when_they_leave(
    fleet: Deployment, library: Library
) -> None:
    library.workers[2] = Worker()
    await until(fleet, 16)
    assert await fleet.stats() == EngineStats(num_running=2, generated_tokens=10)
    del library.workers[2]
    await until(fleet, 8)
    async with asyncio.timeout(10):
        while await fleet.stats() != EngineStats(num_running=1, generated_tokens=10):
            await asyncio.sleep(0)


@pytest.mark.parametrize(
    "other", [Worker(max_model_len=128), Worker(version="3-00000000")], ids=["shorter", "release"]
)
async def test_a_worker_of_another_kind_is_not_used(
    fleet: Deployment, library: Library, other: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    library.workers[2] = other
    async with asyncio.timeout(10):
        while "Worker 2 is not used" not in caplog.text:
            await asyncio.sleep(0)
    assert [replica.engine.instance_id for replica in await fleet.healthy()] == [1]
    assert fleet.info.max_num_seqs == 8


async def test_all_answers_of_a_lost_worker_end_at_once(
    fleet: Deployment, library: Library
) -> None:
    worker = (await fleet.choose(REQUEST)).engine
    life = worker.life
    answers = [worker.generate(REQUEST) for _ in range(2)]
    for each in answers:
        assert (await anext(each)).token_ids == (11,)
    library.workers[1].is_gone = True
    for each in answers:
        with pytest.raises(EngineDead, match="worker 1 is gone"):
            await anext(each)
    assert worker.life != life


async def test_a_closed_answer_is_cancelled_at_its_worker(
    fleet: Deployment, library: Library
) -> None:
    async with aclosing((await fleet.choose(REQUEST)).engine.generate(REQUEST)) as events:
        await anext(events)
        contexts = [c for c in library.workers[1].contexts if not c.stopped.is_set()]
        assert contexts
    assert all(context.stopped.is_set() for context in contexts)


async def test_a_withdrawn_worker_ends_its_answers_and_gets_no_others(
    fleet: Deployment, library: Library
) -> None:
    library.workers[2] = Worker()
    await until(fleet, 16)
    worker = next(r.engine for r in fleet.replicas if r.engine.instance_id == 1)
    running = worker.generate(REQUEST)
    await anext(running)
    library.unlisted.add(1)
    with pytest.raises(NotTaken):
        await anext(worker.generate(REQUEST))
    await until(fleet, 8)
    assert worker.life > 0  # what runs there is not given up
    assert [replica.engine.instance_id for replica in await fleet.healthy()] == [2]
    await running.aclose()


async def test_without_workers_a_request_waits_for_one_and_then_the_deployment_is_dead(
    fleet: Deployment, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    library.workers[1].is_gone = True
    choosing = asyncio.create_task(fleet.choose(REQUEST))
    await asyncio.sleep(0.01)
    library.workers[2] = Worker()
    assert (await choosing).engine.instance_id in (1, 2)
    library.workers[2].is_gone = True
    monkeypatch.setattr(fleet, "_patience_s", 0.01)
    async with asyncio.timeout(10):
        while not fleet.is_dead:
            await asyncio.sleep(0.001)
    with pytest.raises(EngineDead, match=r"no worker of Dynamo serves a\.b\.c"):
        await fleet.choose(REQUEST)


@pytest.fixture
async def prefillers(library: Library) -> AsyncIterator[Prefillers]:
    for number in (1, 2):
        library.workers[number] = Worker(handover=f"tcp://10.0.0.{number}:5560")
    made = Prefillers("a.b.c-prefill", "file")
    await made.join(library)
    async with asyncio.timeout(10):
        seen: set[str] = set()
        while len(seen) < 2:  # both are known
            await asyncio.sleep(0)
            if (turn := await made.turn(long(9000 + 100 * len(seen)))) is not None:
                turn.end(0)
                seen.add(turn.endpoint)
    yield made
    await made.stop()


def long(seed: int = 0, num_tokens: int = 1000) -> EngineRequest:
    return EngineRequest("long", tuple(range(seed, seed + num_tokens)), SamplingParams(1))


async def test_a_prompt_goes_where_its_beginning_was_computed(prefillers: Prefillers) -> None:
    first = await prefillers.turn(long(5000))
    assert first is not None
    first.end(992)
    for _ in range(3):
        other = await prefillers.turn(long(7000))
        next_turn = await prefillers.turn(long(5000, 1200))
        assert other is not None
        assert next_turn is not None
        other.end(992)
        assert next_turn.endpoint == first.endpoint
        next_turn.end(1184)


async def test_a_worker_whose_blocks_did_not_come_is_thought_to_have_none(
    prefillers: Prefillers,
) -> None:
    """Otherwise a worker that does not fit would be asked for the same beginning for ever."""
    first = await prefillers.turn(long(5000))
    assert first is not None
    first.end(64)
    second = await prefillers.turn(long(5000))
    assert second is not None
    assert second.endpoint != first.endpoint


async def test_prompts_that_no_engine_hands_over_are_nobodys_turn(prefillers: Prefillers) -> None:
    assert await prefillers.turn(long(num_tokens=256)) is None
    scored = EngineRequest("r", long().prompt_token_ids, SamplingParams(1, prompt_logprobs=1))
    assert await prefillers.turn(scored) is None
