"""Engine processes that every test leaves as it found the machine."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from engines.base import EngineRequest, SamplingParams
from engines.errors import EngineDead
from engines.process.client import EngineClient
from engines.process.supervisor import EngineSupervisor, RestartPolicy
from engines.spec import EngineSpec

TIMEOUT_S = 60.0

StartEngine = Callable[..., Awaitable[EngineSupervisor]]
StartClient = Callable[..., Awaitable[EngineClient]]
MakeRequest = Callable[..., EngineRequest]
Until = Callable[[Callable[[], Awaitable[bool]]], Awaitable[None]]


@pytest.fixture
def temp_folder(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """The folder for temporary files; short, because socket paths have to be."""
    tmp_path_factory.getbasetemp()  # pytest's own folder must not come to lie in ours
    folder = Path(tempfile.mkdtemp(prefix="hm-"))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
async def no_leaks(temp_folder: Path) -> AsyncIterator[None]:
    """Fail the test that leaves a task, a process, a descriptor or a file behind."""
    tasks, this = asyncio.all_tasks(), psutil.Process()
    await (await asyncio.create_subprocess_exec("true")).wait()  # the loop's own descriptors
    num_fds, children = this.num_fds(), this.children()
    yield
    assert asyncio.all_tasks() - tasks - {asyncio.current_task()} == set()
    assert this.children() == children
    assert this.num_fds() <= num_fds, os.listdir("/proc/self/fd")
    assert list(temp_folder.iterdir()) == []


@pytest.fixture
async def start_engine(no_leaks: None) -> AsyncIterator[StartEngine]:
    """Start a supervised engine process on the scripted engine with these options."""
    started: list[EngineSupervisor] = []

    async def start(policy: RestartPolicy | None = None, **options: Any) -> EngineSupervisor:
        options = {"script": [11, 12, 13], "step_s": 0.002, **options}
        supervisor = EngineSupervisor(EngineSpec("tests.fake", options), policy)
        started.append(supervisor)
        await supervisor.start()
        return supervisor

    yield start
    for supervisor in started:
        await supervisor.stop(drain_timeout_s=0.0, grace_s=5.0)


@pytest.fixture
async def start_client(start_engine: StartEngine) -> AsyncIterator[StartClient]:
    """Connect a client to a supervised engine; it disconnects before the engine stops."""
    clients: list[EngineClient] = []

    async def start(supervisor: EngineSupervisor, **options: Any) -> EngineClient:
        client = EngineClient(supervisor.address, explain=lambda: supervisor.reason, **options)
        clients.append(client)
        await client.start()
        return client

    yield start
    for client in clients:
        await client.stop()


@pytest.fixture
def make_request() -> MakeRequest:
    def make(max_tokens: int = 100_000, **sampling: Any) -> EngineRequest:
        return EngineRequest("request", (1, 2, 3), SamplingParams(max_tokens, **sampling))

    return make


@pytest.fixture
def until() -> Until:
    """Wait for a condition that nothing announces."""

    async def wait(condition: Callable[[], Awaitable[bool]]) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while not await condition():
                await asyncio.sleep(0.005)

    return wait


@pytest.fixture
def until_healthy(until: Until) -> Callable[[EngineClient], Awaitable[None]]:
    async def wait(client: EngineClient) -> None:
        async def is_healthy() -> bool:
            try:
                await client.check_health()
            except EngineDead:
                return False
            return True

        await until(is_healthy)

    return wait
