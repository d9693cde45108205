"""An engine that lives and does nothing: found, ended, and never called ready."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from engines.base import EngineRequest, EngineStats, SamplingParams
from engines.errors import EngineDead
from engines.fleet import Fleet
from engines.process.child import Watchdog
from engines.process.client import EngineClient
from engines.process.supervisor import EngineSupervisor, RestartPolicy
from engines.process.wire import HEARTBEAT_S, Alive, Ready
from engines.recovery.crash_records import CrashRecords
from engines.recovery.guarded import GuardedEngine
from engines.recovery.probe import Probe

HARMFUL = 666
QUICK = RestartPolicy(first_delay_s=0.05, step_timeout_s=1.0)


def request_of(*prompt: int, max_tokens: int = 100_000) -> EngineRequest:
    return EngineRequest("request", prompt, SamplingParams(max_tokens))


async def error_of(client: EngineClient, request: EngineRequest) -> str:
    with pytest.raises(EngineDead) as caught:
        async for _ in client.generate(request):
            pass
    return str(caught.value)


async def until_refused(probe: Probe) -> None:
    while True:
        await probe.check()
        await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("stall", "had running requests and computed no step for 1 s"),  # its loop goes on
        ("spin", "did not respond for 1 s"),  # an infinite loop
    ],
)
async def test_an_engine_without_progress_is_killed_and_restarted(
    kind: str, reason: str, start_engine: Any, start_client: Any, until: Any, until_healthy: Any
) -> None:
    fault = {"token": HARMFUL, "kind": kind, "after": 3}
    supervisor: EngineSupervisor = await start_engine(QUICK, faults=[fault])
    client = await start_client(supervisor)
    said: list[str | None] = []
    harmful = asyncio.create_task(error_of(client, request_of(HARMFUL)))
    other = asyncio.create_task(error_of(client, request_of(1)))

    async def is_told() -> bool:
        said.append(supervisor.reason)
        return any(reason in (text or "") for text in said)

    await until(is_told)
    async with asyncio.timeout(60):
        await asyncio.gather(harmful, other)  # both streams ended in an error
    await until_healthy(client)
    async with aclosing(client.generate(request_of(1))) as events:
        await anext(events)
    assert supervisor.num_restarts in (1, 2)  # on a busy machine it may seem to hang again


async def test_a_stopped_process_is_killed_and_restarted(
    start_engine: Any, start_client: Any, until: Any, until_healthy: Any
) -> None:
    supervisor = await start_engine(QUICK)
    client = await start_client(supervisor)
    lost = asyncio.create_task(error_of(client, request_of(1)))
    os.kill(supervisor.pid, signal.SIGSTOP)
    async with asyncio.timeout(60):
        await lost

    async def is_restarted() -> bool:
        return bool(supervisor.num_restarts >= 1)

    await until(is_restarted)
    await until_healthy(client)


def test_slow_steps_and_pauses_of_ours_are_no_hang() -> None:
    watchdog = Watchdog(hang_timeout_s=2.0, step_timeout_s=4 * HEARTBEAT_S)
    watchdog.on_report(Ready())
    for num_steps in range(5):
        for _ in range(3):  # beats while one step is computed
            watchdog.on_report(Alive(num_steps, is_running=True))
    for _ in range(100):
        watchdog.on_report(Alive(5, is_running=False))
    assert watchdog.verdict is None
    watchdog.on_turn(1.5)
    watchdog.on_report(Alive(5, is_running=False))
    watchdog.on_turn(1.5)
    assert watchdog.verdict is None
    for _ in range(4):
        watchdog.on_report(Alive(5, is_running=True))
    assert watchdog.verdict is not None


def test_starting_may_take_longer_than_a_step() -> None:
    watchdog = Watchdog(hang_timeout_s=60.0, step_timeout_s=5.0)
    watchdog.on_turn(30.0)
    assert watchdog.verdict is None
    watchdog.on_report(Ready())
    watchdog.on_turn(5.0)
    assert watchdog.verdict == "it did not respond for 5 s"


async def test_an_idle_engine_that_generates_nothing_is_not_ready(
    start_engine: Any, start_client: Any, temp_folder: Any
) -> None:
    probe_token = {"token": 0, "kind": "stall"}
    client = await start_client(await start_engine(faults=[probe_token]))
    engine = GuardedEngine(Fleet([client]), CrashRecords(temp_folder / "suspects", 600.0))
    await client.check_health()  # the heartbeat knows nothing
    for _ in range(2):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await engine.check_health()
    assert (await client.stats()).num_running == 1  # one probe for all who ask
    await engine.stop()


async def test_a_busy_engine_is_asked_for_nothing_and_judged_by_its_steps(
    start_engine: Any, start_client: Any
) -> None:
    fault = {"token": HARMFUL, "kind": "stall", "after": 3}
    client = await start_client(await start_engine(step_s=0.01, faults=[fault]))
    probe = Probe(client, interval_s=0.0, stall_s=0.2)
    await probe.check()
    assert (await client.stats()).generated_tokens == 1  # idle: the probe's own
    async with aclosing(client.generate(request_of(1))) as events:
        await anext(events)
        for _ in range(20):
            await probe.check()
        stats = await client.stats()
    assert stats.prompt_tokens == 2  # one of the probe, one of the request
    harmful = asyncio.create_task(error_of(client, request_of(HARMFUL)))
    async with asyncio.timeout(60):
        with pytest.raises(EngineDead, match=r"computed no step for 0\.2 s"):
            await until_refused(probe)
    harmful.cancel()
    await asyncio.wait([harmful])


async def test_a_probe_is_made_once_an_interval(start_engine: Any, start_client: Any) -> None:
    client = await start_client(await start_engine())
    probe = Probe(client, interval_s=3600.0)
    for _ in range(10):
        await probe.check()
    assert (await client.stats()).generated_tokens == 1


async def test_an_engine_whose_every_token_fails_is_never_ready_though_its_steps_count(
    start_engine: Any, start_client: Any
) -> None:
    """As with weights of NaN: each step ends, none gives a token."""
    client = await start_client(await start_engine(faults=[{"token": 0, "kind": "memory"}]))
    probe = Probe(client)
    for _ in range(6):
        with pytest.raises(EngineDead, match=r"it cannot generate a token: .*out of memory"):
            await probe.check()
    async for _ in client.generate(request_of(1, max_tokens=2)):
        pass
    await probe.check()  # somebody's tokens prove that it generates again


async def test_before_the_first_token_steps_prove_nothing(
    start_engine: Any, start_client: Any
) -> None:
    """Steps that end while the first token is awaited: a warm-up, or those of weights of NaN."""
    num_steps = 0

    class Stepping(EngineClient):
        async def stats(self) -> EngineStats:
            nonlocal num_steps
            num_steps += 1
            return replace(await super().stats(), num_steps=num_steps)

    supervisor = await start_engine(faults=[{"token": 0, "kind": "stall"}])
    client = Stepping(supervisor.address)
    await client.start()
    probe = Probe(client)
    try:
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await probe.check()
        assert num_steps == 3
    finally:
        await probe.stop()
        await client.stop()
