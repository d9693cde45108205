"""Several API processes share one engine; one that vanishes or sleeps harms nobody."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import zmq

import engines.process.server
from engines.base import Engine, EngineRequest, EngineStats, Receive, TokenEvent
from engines.errors import EngineDead, OutOfMemory, RequestFailed
from engines.factory import create
from engines.process.client import EngineClient
from engines.process.server import EngineServer
from engines.process.wire import (
    HostMessage,
    HostState,
    Link,
    Status,
    StepMessage,
    StreamFailure,
    Submit,
)
from engines.spec import EngineSpec
from tests.engines.queueing.recorder import Recorder, engine_of, request
from tests.fake.engine import FakeEngine
from tests.fake.sequence import FakeOptions

WORKER = """
import asyncio, sys
from engines.base import EngineRequest, SamplingParams
from engines.process.client import EngineClient

async def read(client):
    async for _ in client.generate(EngineRequest("worker", (1, 2), SamplingParams(100_000))):
        print("token", flush=True)
        await asyncio.sleep(3600)

async def main():
    client = EngineClient(sys.argv[1])
    await client.start()
    await asyncio.gather(*(read(client) for _ in range(3)))

asyncio.run(main())
"""


async def first_event(client: EngineClient, request: EngineRequest) -> TokenEvent:
    async with aclosing(client.generate(request)) as events:
        return await anext(events)


StartWorker = Callable[[str], Awaitable[asyncio.subprocess.Process]]


@pytest.fixture
async def start_worker(no_leaks: None) -> AsyncIterator[StartWorker]:
    """Another process with three running requests."""
    started = []

    async def start(address: str) -> asyncio.subprocess.Process:
        worker = await asyncio.create_subprocess_exec(
            sys.executable, "-c", WORKER, address, stdout=asyncio.subprocess.PIPE
        )
        started.append(worker)
        assert worker.stdout is not None
        async with asyncio.timeout(60):
            for _ in range(3):
                assert await worker.stdout.readline() == b"token\n"
        return worker

    yield start
    for worker in started:
        if worker.returncode is None:
            worker.kill()
        await worker.communicate()


async def test_a_request_that_there_was_no_memory_to_read_is_answered(
    no_leaks: None, temp_folder: Path, make_request: Any
) -> None:
    class Poor:
        def decode(self, body: bytes) -> Any:
            if len(body) > 2_000:
                raise MemoryError
            return decoder.decode(body)

    address = f"ipc://{temp_folder}/engine.sock"
    engine, server = FakeEngine(FakeOptions(script=(5,))), EngineServer(address)
    await engine.start()
    decoder, server._decoder = server._decoder, Poor()  # type: ignore[assignment]
    server.serve(engine)
    client = EngineClient(address)
    await client.start()
    large = replace(make_request(), prompt_token_ids=(1,) * 5_000)
    async with asyncio.timeout(60):
        with pytest.raises(OutOfMemory):
            await first_event(client, large)
        await first_event(client, make_request())
    await client.stop()
    await server.close()
    await engine.stop()


async def test_a_request_that_no_thread_can_be_started_for_is_told_to_come_again(
    no_leaks: None, temp_folder: Path, make_request: Any, no_more_threads: Callable[[], Any]
) -> None:
    class Compiling(FakeEngine):
        async def open(self, request: EngineRequest, receive: Receive) -> Any:
            threading.Thread(target=int).start()  # as for a grammar
            return await super().open(request, receive)

    address = f"ipc://{temp_folder}/engine.sock"
    engine, server = Compiling(FakeOptions(script=(5,))), EngineServer(address)
    await engine.start()
    server.serve(engine)
    client = EngineClient(address)
    await client.start()
    async with asyncio.timeout(60):
        with no_more_threads(), pytest.raises(OutOfMemory, match="no more threads"):
            await first_event(client, make_request())
        await first_event(client, make_request())
    await client.stop()
    await server.close()
    await engine.stop()


async def test_a_closed_server_sends_nothing_while_its_engine_stops(
    no_leaks: None, temp_folder: Path, make_request: Any
) -> None:
    """Neither the next beat to a connected client, nor an event of the moment before."""
    address = f"ipc://{temp_folder}/engine.sock"
    engine, server = FakeEngine(FakeOptions(script=(5,))), EngineServer(address)
    await engine.start()
    server.serve(engine)
    client = EngineClient(address)
    await client.start()
    problems: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, problem: problems.append(problem))
    async with asyncio.timeout(60), aclosing(client.generate(make_request())) as events:
        event = await anext(events)
        [peer] = server._peers.values()
        [run] = peer.streams.values()
        server.on_outcome(run, event)
        await server.close()
        server.beat()
        await engine.stop()
    await client.stop()
    assert problems == []


async def test_a_client_learns_when_the_engine_takes_a_request_from_its_queue(
    no_leaks: None, temp_folder: Path
) -> None:
    address = f"ipc://{temp_folder}/engine.sock"
    runner, server = Recorder(max_num_seqs=1), EngineServer(address)
    server.serve(await engine_of(runner))
    client = EngineClient(address)
    await client.start()
    entered: list[str] = []

    async def read(name: str) -> None:
        events = client.generate(request(name), lambda: entered.append(name))
        async with aclosing(events):
            async for _ in events:
                pass

    async def beat_until(name: str) -> None:
        async with asyncio.timeout(60):
            while name not in entered:
                server.beat()
                await asyncio.sleep(0.001)

    reading = [asyncio.create_task(read("a"))]
    await beat_until("a")
    reading.append(asyncio.create_task(read("b")))
    num_told = len(entered)
    async with asyncio.timeout(60):
        while len(entered) < num_told + 20:
            server.beat()
            await asyncio.sleep(0.001)
    assert set(entered) == {"a"}
    runner.give("a", is_last=True)
    await beat_until("b")
    runner.give("b", is_last=True)
    await asyncio.gather(*reading)
    await client.stop()
    await server.close()


async def test_a_killed_api_process_leaves_no_running_sequences(
    start_engine: Any, start_client: Any, start_worker: StartWorker, make_request: Any, until: Any
) -> None:
    supervisor = await start_engine()
    client: EngineClient = await start_client(supervisor)
    worker = await start_worker(supervisor.address)
    assert (await client.stats()).num_running == 3
    async with aclosing(client.generate(make_request())) as events:
        await anext(events)
        worker.kill()

        async def is_alone() -> bool:
            return (await client.stats()).num_running == 1

        await until(is_alone)
        await anext(events)  # ours goes on
    assert supervisor.num_restarts == 0


async def test_a_request_that_only_waits_ends_with_its_client_too(
    start_engine: Any, start_client: Any, start_worker: StartWorker, make_request: Any, until: Any
) -> None:
    supervisor = await start_engine(max_num_seqs=3)
    client: EngineClient = await start_client(supervisor)
    await start_worker(supervisor.address)
    waiting = EngineClient(supervisor.address)
    await waiting.start()
    reading = asyncio.create_task(first_event(waiting, make_request()))

    async def is_waiting() -> bool:
        return (await client.stats()).num_waiting == 1

    await until(is_waiting)
    reading.cancel()
    await asyncio.wait([reading])
    await waiting.stop()

    async def is_gone() -> bool:
        return (await client.stats()).num_waiting == 0

    await until(is_gone)
    assert (await client.stats()).num_running == 3


async def test_a_sleeping_client_does_not_stall_the_others(
    start_engine: Any, start_client: Any, start_worker: StartWorker, make_request: Any
) -> None:
    supervisor = await start_engine(step_s=0.0)
    client: EngineClient = await start_client(supervisor)
    worker = await start_worker(supervisor.address)
    worker.send_signal(signal.SIGSTOP)
    num_tokens = 0
    async with asyncio.timeout(60):
        async for event in client.generate(make_request(20_000)):
            num_tokens += len(event.token_ids)
    assert num_tokens == 20_000


async def test_a_slow_reader_gets_waiting_events_as_one(
    start_engine: Any, start_client: Any, make_request: Any
) -> None:
    client: EngineClient = await start_client(await start_engine())
    async with aclosing(client.generate(make_request(50, logprobs=1))) as events:
        first = await anext(events)
        await client.drain()  # all 50 tokens have arrived, none of them read
        rest = [event async for event in events]
    assert len(rest) == 1
    token_ids = first.token_ids + rest[0].token_ids
    assert token_ids == tuple((11, 12, 13)[i % 3] for i in range(50))
    assert rest[0].logprobs is not None
    assert tuple(entry.token_id for entry in rest[0].logprobs) == rest[0].token_ids
    assert rest[0].finish_reason == "length"


@dataclass
class Served:
    """A server in this process, and a bare link to it whose request 7 is running."""

    server: EngineServer
    engine: Engine
    received: list[HostMessage]

    @property
    def failures(self) -> list[StreamFailure]:
        return [
            f
            for message in self.received
            if isinstance(message, StepMessage)
            for f in message.failures
        ]


@pytest.fixture
async def served(
    no_leaks: None, temp_folder: Any, make_request: Any, until: Any
) -> AsyncIterator[Served]:
    address = f"ipc://{temp_folder}/engine.sock"
    server = EngineServer(address)
    engine = create(EngineSpec("tests.fake", {"script": [1], "step_s": 0.01}))
    await engine.start()
    server.serve(engine)
    received: list[HostMessage] = []
    context = zmq.Context()
    link = Link(context, address, received.append, pytest.fail)
    await until(lambda: _any(isinstance(message, Status) for message in received))
    link.send(Submit(7, make_request()))
    await until(lambda: _any(isinstance(message, StepMessage) for message in received))
    yield Served(server, engine, received)
    link.close()
    context.destroy()
    await server.close()
    await engine.stop()


async def test_a_client_that_falls_silent_loses_its_requests(
    served: Served, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines.process.server, "CLIENT_SILENCE_S", 0.0)
    served.server.beat()
    await until(lambda: _any(served.failures))
    [failure] = served.failures
    assert (failure.stream, failure.code) == (7, RequestFailed.code)
    assert (await served.engine.stats()).num_running == 0


async def test_an_engine_that_gives_up_is_called_dead_before_its_streams_end(
    served: Served, until: Any
) -> None:
    """Its process lives for a moment yet: a request run again there would die a second time."""
    await served.engine.stop()
    await until(lambda: _any(served.failures))
    states = [message.state for message in served.received if isinstance(message, Status)]
    assert states == [HostState.READY, HostState.DEAD]
    assert isinstance(served.received[-1], StepMessage)
    assert [failure.code for failure in served.failures] == [EngineDead.code]


async def _any(outcomes: Any) -> bool:
    return any(outcomes)


async def test_events_show_that_an_engine_works_which_counts_nothing(
    served: Served, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stats() -> EngineStats:
        return EngineStats(num_running=1)

    monkeypatch.setattr(served.engine, "stats", stats)
    before, is_running = await served.server.progress()
    assert is_running

    async def has_grown() -> bool:
        return (await served.server.progress())[0] > before

    await until(has_grown)
    await served.engine.stop()
    await until(lambda: _any(served.failures))
    still, _ = await served.server.progress()
    assert (await served.server.progress())[0] == still
