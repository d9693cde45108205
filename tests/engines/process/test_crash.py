"""The engine process dies or hangs under running requests."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from engines.base import EngineRequest
from engines.errors import EngineDead
from engines.process.client import EngineClient
from engines.process.supervisor import EngineSupervisor, RestartPolicy
from engines.spec import EngineSpec


async def error_of(client: EngineClient, request: EngineRequest, begun: asyncio.Event) -> str:
    try:
        async for _ in client.generate(request):
            begun.set()
    except EngineDead as error:
        return str(error)
    return "no error"


async def collect(client: EngineClient, request: EngineRequest) -> tuple[int, ...]:
    return tuple([token async for event in client.generate(request) for token in event.token_ids])


async def test_kill_9_in_mid_stream_and_recovery(
    start_engine: Any, start_client: Any, make_request: Any, until: Any, until_healthy: Any
) -> None:
    supervisor = await start_engine(RestartPolicy(first_delay_s=0.1))
    clients = [await start_client(supervisor), await start_client(supervisor)]
    begun = [asyncio.Event() for _ in range(8)]
    streams = [
        asyncio.create_task(error_of(clients[number % 2], make_request(), event))
        for number, event in enumerate(begun)
    ]
    await asyncio.gather(*(event.wait() for event in begun))

    os.kill(killed := supervisor.pid, signal.SIGKILL)
    reasons = await asyncio.gather(*streams)
    assert not any("did not respond" in reason for reason in reasons)  # nobody waited for a beat
    assert all("; send the request again" in reason for reason in reasons)
    for client in clients:
        with pytest.raises(EngineDead, match=r"connection to the engine was lost|SIGKILL"):
            await client.check_health()
        with pytest.raises(EngineDead):
            await client.stats()

    async def is_explained() -> bool:
        with pytest.raises(EngineDead) as caught:
            await clients[0].check_health()
        return "killed by SIGKILL" in str(caught.value)

    await until(is_explained)
    for client in clients:
        await until_healthy(client)
        assert await collect(client, make_request(4)) == (11, 12, 13, 11)
    assert supervisor.pid != killed
    assert supervisor.num_restarts == 1


async def test_a_client_reports_a_hung_engine_and_returns_when_it_wakes(
    start_engine: Any, start_client: Any, make_request: Any, until: Any, until_healthy: Any
) -> None:
    supervisor = await start_engine()
    client: EngineClient = await start_client(supervisor, heartbeat_timeout_s=1.0)
    begun = asyncio.Event()
    stream = asyncio.create_task(error_of(client, make_request(), begun))
    await begun.wait()
    os.kill(supervisor.pid, signal.SIGSTOP)
    assert await stream == "the engine did not respond for 1 s; send the request again"
    with pytest.raises(EngineDead, match="did not respond"):
        await client.check_health()
    os.kill(supervisor.pid, signal.SIGCONT)
    await until_healthy(client)
    assert await collect(client, make_request(2)) == (11, 12)

    async def is_idle() -> bool:  # the stream of the old connection was aborted
        return (await client.stats()).num_running == 0

    await until(is_idle)
    assert supervisor.num_restarts == 0


async def test_the_supervisor_replaces_a_hung_engine(
    start_engine: Any, start_client: Any, until: Any, until_healthy: Any
) -> None:
    supervisor = await start_engine(RestartPolicy(first_delay_s=0.3, hang_timeout_s=2.0))
    client = await start_client(supervisor)
    os.kill(hung := supervisor.pid, signal.SIGSTOP)

    async def is_found() -> bool:
        return bool(supervisor.reason)

    await until(is_found)
    reason = "the engine process was killed by SIGKILL: it did not respond for 2 s"
    assert supervisor.reason == reason
    with pytest.raises(EngineDead, match="did not respond for 2 s"):
        await client.check_health()
    await until_healthy(client)
    assert not psutil.pid_exists(hung)


async def test_restarts_go_on_when_one_is_killed_too(
    start_engine: Any, start_client: Any, until: Any, until_healthy: Any
) -> None:
    supervisor = await start_engine(RestartPolicy(first_delay_s=0.01), start_s=0.3)
    client = await start_client(supervisor)
    os.kill(supervisor.pid, signal.SIGKILL)

    def hosts() -> list[psutil.Process]:  # other tests' servers may be children too
        children = psutil.Process().children()
        return [child for child in children if "engines.process.host" in child.cmdline()]

    async def is_starting() -> bool:
        return supervisor.num_restarts == 1 and hosts() != []

    await until(is_starting)
    hosts()[0].kill()
    await until_healthy(client)
    assert supervisor.num_restarts == 2


async def test_while_an_engine_starts_again_the_end_of_the_last_is_told(
    start_engine: Any, start_client: Any, until: Any, until_healthy: Any
) -> None:
    supervisor = await start_engine(RestartPolicy(first_delay_s=0.01), start_s=0.5)
    client = await start_client(supervisor)
    first = client.life
    os.kill(supervisor.pid, signal.SIGKILL)

    async def is_loading() -> bool:  # the new process answers
        return client.life not in (0, first)

    await until(is_loading)
    with pytest.raises(EngineDead, match=r"is starting again: .* was killed by SIGKILL"):
        await client.check_health()
    await until_healthy(client)


async def test_a_restart_that_fails_is_tried_again_and_its_reason_told(
    no_leaks: None, until: Any, until_healthy: Any
) -> None:
    options: dict[str, Any] = {"script": [1]}
    supervisor = EngineSupervisor(
        EngineSpec("tests.fake", options), RestartPolicy(first_delay_s=0.05)
    )
    await supervisor.start()
    client = supervisor.client()
    await client.start()
    options["start_error"] = "no memory left"
    assert supervisor.pid is not None
    os.kill(supervisor.pid, signal.SIGKILL)

    async def is_told_twice() -> bool:
        return supervisor.reason == "no memory left" and supervisor.num_restarts >= 2

    await until(is_told_twice)
    with pytest.raises(EngineDead, match="no memory left"):
        await client.check_health()
    del options["start_error"]
    await until_healthy(client)
    await client.stop()
    await supervisor.stop()


async def test_what_a_killed_process_left_in_its_temporary_folder_goes(
    no_leaks: None, until: Any
) -> None:
    spec = EngineSpec("tests.fake", {"script": [1]})
    supervisor = EngineSupervisor(spec, RestartPolicy(first_delay_s=0.05), dict(os.environ))
    await supervisor.start()
    process = psutil.Process(supervisor.pid)
    folder = Path(process.environ()["TMPDIR"])
    assert folder.stat().st_mode & 0o777 == 0o700
    (folder / "socket").touch()
    process.kill()

    async def is_started_again() -> bool:
        return supervisor.num_restarts == 1 and supervisor.reason is None

    await until(is_started_again)
    assert [*folder.iterdir()] == []
    (folder / "socket").touch()
    await supervisor.stop()
    assert not folder.exists()


def test_back_off_doubles_up_to_a_limit_and_forgets_after_a_long_life() -> None:
    policy = RestartPolicy(first_delay_s=0.5, max_delay_s=3.0, reset_after_s=60.0)
    assert policy.next_delay_s(None, 1.0) == 0.5
    assert policy.next_delay_s(0.5, 1.0) == 1.0
    assert policy.next_delay_s(2.0, 59.0) == 3.0
    assert policy.next_delay_s(3.0, 61.0) == 0.5
