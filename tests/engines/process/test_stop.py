"""Stopping: running requests finish first, patience ends, and no process stays behind."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from engines.base import EngineRequest
from engines.errors import EngineDead, EngineDraining
from engines.process.client import EngineClient

PARENT = """
import asyncio, sys
from engines.spec import EngineSpec
from engines.process.supervisor import EngineSupervisor

async def main():
    supervisor = EngineSupervisor(EngineSpec("tests.fake", {"script": [1]}))
    await supervisor.start()
    print(supervisor.pid, supervisor.address.removeprefix("ipc://"), flush=True)
    await asyncio.sleep(3600)

asyncio.run(main())
"""


async def read(client: EngineClient, request: EngineRequest, begun: asyncio.Event) -> int:
    num_tokens = 0
    async for event in client.generate(request):
        num_tokens += len(event.token_ids)
        begun.set()
    return num_tokens


async def test_stop_lets_running_requests_finish(
    start_engine: Any, start_client: Any, make_request: Any
) -> None:
    supervisor = await start_engine()
    client = await start_client(supervisor)
    begun = asyncio.Event()
    reading = asyncio.create_task(read(client, make_request(200), begun))
    await begun.wait()
    await supervisor.stop()
    assert await reading == 200
    with pytest.raises(EngineDead, match="the engine process was stopped"):
        await client.check_health()
    await supervisor.stop()


async def test_new_requests_are_refused_while_the_engine_drains(
    start_engine: Any, start_client: Any, make_request: Any, until: Any
) -> None:
    supervisor = await start_engine()
    client = await start_client(supervisor)
    begun = asyncio.Event()
    reading = asyncio.create_task(read(client, make_request(), begun))
    await begun.wait()
    stopping = asyncio.create_task(supervisor.stop(drain_timeout_s=1.0))

    async def is_draining() -> bool:
        try:
            await client.check_health()
        except EngineDead as error:
            return str(error) == "the engine is draining"
        return False

    await until(is_draining)
    with pytest.raises(EngineDraining):
        await read(client, make_request(), asyncio.Event())
    assert not reading.done()
    await stopping  # patience ends: what still ran is aborted
    with pytest.raises(EngineDead):
        await reading


async def test_an_engine_deaf_to_signals_is_killed(start_engine: Any) -> None:
    supervisor = await start_engine()
    os.kill(pid := supervisor.pid, signal.SIGSTOP)
    async with asyncio.timeout(60):
        await supervisor.stop(drain_timeout_s=0.1, grace_s=0.1)
    assert not psutil.pid_exists(pid)


async def test_a_stopped_client_ends_its_streams_and_their_sequences(
    start_engine: Any, start_client: Any, make_request: Any, until: Any
) -> None:
    supervisor = await start_engine()
    witness: EngineClient = await start_client(supervisor)
    client = await start_client(supervisor)
    begun = asyncio.Event()
    reading = asyncio.create_task(read(client, make_request(), begun))
    await begun.wait()
    await client.stop()
    await client.stop()
    with pytest.raises(EngineDead, match="the server is shutting down"):
        await reading

    async def is_idle() -> bool:
        return (await witness.stats()).num_running == 0

    await until(is_idle)


async def test_a_killed_parent_takes_the_engine_and_its_socket_along(
    no_leaks: None, temp_folder: Path, until: Any
) -> None:
    parent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PARENT),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(temp_folder)},
    )
    assert parent.stdout is not None
    pid, socket = (await parent.stdout.readline()).split()
    assert Path(socket.decode()).exists()
    engine = psutil.Process(int(pid))
    parent.kill()
    await parent.wait()

    async def is_gone() -> bool:
        return not engine.is_running()

    await until(is_gone)
    assert list(temp_folder.iterdir()) == []
