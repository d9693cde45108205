"""An engine's process that ends when it is idle: what wakes it, what does not, and what fails."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any

import pytest

from engines.base import PROBE_ID, EngineRequest, SamplingParams, TokenEvent
from engines.errors import EngineDead, Overloaded, QueueFull, RequestFailed
from engines.process.supervisor import RestartPolicy
from engines.spec import EngineSpec
from parts.sleep.proxy.engine import SleepingEngine, order
from parts.sleep.proxy.sleeper import NEVER_S, Sleeper

pytestmark = pytest.mark.heavy  # each engine is a process

SCRIPT = [11, 12, 13]
LONG_S = 3600.0
Make = Callable[..., Any]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    """A started engine that sleeps after `idle_s`."""
    async with AsyncExitStack() as stack:

        async def start(
            idle_s: float = LONG_S, max_num_waiting: int | None = None, **options: Any
        ) -> SleepingEngine:
            given = options or {"script": SCRIPT}
            policy = RestartPolicy(first_delay_s=NEVER_S)
            sleeper = Sleeper(EngineSpec("tests.fake", given), policy, idle_s, pause_s=0.01)
            engine = SleepingEngine(sleeper, max_num_waiting)
            stack.push_async_callback(engine.stop)
            await engine.start()
            return engine

        yield start


def request(id: str, num_tokens: int = 3) -> EngineRequest:
    return EngineRequest(id, (1, 2), SamplingParams(max_tokens=num_tokens))


async def answer(engine: SleepingEngine, asked: EngineRequest) -> list[TokenEvent]:
    async with aclosing(engine.generate(asked)) as events:
        return [event async for event in events]


async def tokens(engine: SleepingEngine, asked: EngineRequest) -> list[int]:
    return [id for event in await answer(engine, asked) for id in event.token_ids]


async def told(engine: SleepingEngine, what: str) -> bool:
    [event] = await answer(engine, order(what, what))
    assert event.extras is not None
    return bool(event.extras["asleep"])


async def until_asleep(engine: SleepingEngine) -> None:
    while not (await engine.stats()).levels["asleep"]:
        await asyncio.sleep(0.01)


def children() -> set[int]:
    listed = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    return {*map(int, listed)}


async def test_an_idle_engine_ends_and_a_burst_starts_it_once(make: Make) -> None:
    before = children()
    engine = await make(idle_s=0.05)
    await until_asleep(engine)
    assert children() == before
    # Neither readiness nor counts wake it.
    await engine.check_health()
    probe = EngineRequest(PROBE_ID, (0,), SamplingParams(max_tokens=1))
    assert len(await answer(engine, probe)) == 1
    assert engine.info.max_model_len > 0
    assert children() == before
    answers = await asyncio.gather(*(tokens(engine, request(f"r{n}")) for n in range(50)))
    assert answers == [SCRIPT] * 50
    assert (await engine.stats()).extras["wakes"] == 1
    await until_asleep(engine)
    stats = await engine.stats()
    assert (stats.extras["sleeps"], stats.generated_tokens) == (2, 150)  # of both processes
    assert (stats.num_running, stats.num_kv_blocks) == (0, 0)


async def test_it_does_not_sleep_under_a_request(make: Make) -> None:
    engine = await make(script=SCRIPT, step_s=0.01)
    async with aclosing(engine.generate(request("long", num_tokens=1000))) as events:
        await anext(events)
        assert not await told(engine, "sleep")
        await anext(events)
    assert await told(engine, "sleep")
    assert await told(engine, "sleep")
    assert not await told(engine, "wake")
    assert await tokens(engine, request("next")) == SCRIPT


async def test_one_who_leaves_does_not_end_the_start_for_others(make: Make) -> None:
    engine = await make(script=SCRIPT, start_s=0.3, max_num_waiting=2)
    assert await told(engine, "sleep")
    first = asyncio.create_task(tokens(engine, request("first")))
    second = asyncio.create_task(tokens(engine, request("second")))
    while (await engine.stats()).num_waiting < 2:
        await asyncio.sleep(0.01)
    with pytest.raises(QueueFull):
        await tokens(engine, request("third"))
    first.cancel()
    assert await second == SCRIPT
    assert (await engine.stats()).extras["wakes"] == 1


async def test_a_start_that_fails_is_told_and_tried_again(make: Make, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("def write(ids):\n    return [7]\n")
    engine = await make(script_file=str(script))
    assert await told(engine, "sleep")
    script.rename(tmp_path / "away.py")
    probe = EngineRequest(PROBE_ID, (0,), SamplingParams(max_tokens=1))
    with pytest.raises(Overloaded, match="cannot be started again"):
        await tokens(engine, request("lost"))
    with pytest.raises(RequestFailed, match="cannot be started again"):  # it is not ready
        await answer(engine, probe)
    (tmp_path / "away.py").rename(script)
    assert await tokens(engine, request("again")) == [7, 7, 7]
    assert await answer(engine, probe)


async def test_an_engine_that_dies_awake_is_dead(make: Make) -> None:
    """So its parent starts it again, and requests continue, as with every engine."""
    before = children()
    engine = await make(script=SCRIPT, step_s=0.01)
    [process] = children() - before
    with pytest.raises(EngineDead):
        await killed_under(engine, process)
    with pytest.raises(EngineDead, match="SIGKILL"):
        await until_dead(engine)


async def killed_under(engine: SleepingEngine, process: int) -> None:
    async with aclosing(engine.generate(request("long", num_tokens=1000))) as events:
        await anext(events)
        os.kill(process, signal.SIGKILL)
        async for _ in events:
            pass


async def until_dead(engine: SleepingEngine) -> None:
    while True:
        await engine.check_health()
        await asyncio.sleep(0.01)


async def test_many_sleeps_leave_nothing_behind(make: Make) -> None:
    engine = await make()
    num_open = []
    for _ in range(3):
        assert await told(engine, "sleep")
        num_open.append((len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks())))
        assert await tokens(engine, request("next")) == SCRIPT
    assert num_open[1:] == num_open[:-1]
