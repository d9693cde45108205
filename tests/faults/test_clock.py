"""The wall clock is set back or forward by hours: nothing expires, locks out or times wrongly."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from httpx2 import ASGITransport, AsyncClient

from service.admission.counters import MinuteCounters
from service.admission.lifecycle import Lifecycle
from service.chat_format import format_named
from service.jobs.base import Job
from service.jobs.sqlite import SqliteJobs
from service.run.server import create_app
from service.runtime import Runtime, ServedModel
from service.store.sqlite import SqliteDatabase
from service.telemetry.metrics import Metrics
from tests.fake.engine import FakeEngine
from tests.fake.sequence import FakeOptions

HOURS = 3 * 3600.0


class Clock:
    """The machine's wall clock, which can be set."""

    def __init__(self) -> None:
        self.offset_s = 0.0
        self._real = time.time

    def __call__(self) -> float:
        return self._real() + self.offset_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "time", clock)
    return clock


@pytest.fixture
def make_runtime(harmony_ids: Callable[[str], list[int]], clock: Clock) -> Callable[..., Runtime]:
    def make(**changes: Any) -> Runtime:
        script = tuple(harmony_ids("<|channel|>final<|message|>word word<|return|>"))
        runtime = Runtime(
            engine=FakeEngine(FakeOptions(script=script, step_s=0.02)),
            model=ServedModel("nano", "nano", "0" * 64, 0),
            format=format_named("harmony"),
            metrics=Metrics("nano"),
            lifecycle=Lifecycle(),
            clock=clock,
        )
        runtime.lifecycle.mark_ready()
        return replace(runtime, **changes)

    return make


@pytest.mark.parametrize("jump_s", [HOURS, -HOURS])
async def test_latencies_are_true_and_requests_go_on(
    jump_s: float, clock: Clock, make_runtime: Callable[..., Runtime]
) -> None:
    runtime = make_runtime()
    await runtime.engine.start()
    transport = ASGITransport(create_app(runtime))
    async with AsyncClient(transport=transport, base_url="http://service") as client:
        body = {"model": "nano", "messages": [{"role": "user", "content": "Hi"}]}
        answering = asyncio.create_task(client.post("/v1/chat/completions", json=body))
        while not (await runtime.engine.stats()).num_running:
            await asyncio.sleep(0)
        clock.offset_s = jump_s
        assert (await answering).status_code == 200
        assert (await client.get("/v1/health/ready")).status_code == 200
        metrics = (await client.get("/v1/metrics")).text
    await runtime.engine.stop()
    sums = re.findall(r"^(\w+_seconds_sum)\{.*\} (\S+)$", metrics, re.M)
    assert sums
    assert all(0 <= float(seconds) < 30 for _, seconds in sums), sums


@pytest.mark.parametrize("jump_s", [HOURS, -HOURS])
async def test_rate_limits_lock_nobody_out(jump_s: float, clock: Clock) -> None:
    counters = MinuteCounters()
    for _ in range(3):
        assert (await counters.take("requests", "somebody", 3, 1)).retry_s is None
    assert (await counters.take("requests", "somebody", 3, 1)).retry_s is not None
    clock.offset_s = jump_s
    for _ in range(4):
        standing = await counters.take("requests", "somebody", 3, 1)
        assert 0 <= standing.reset_s <= 120
        assert standing.retry_s is None or 0 <= standing.retry_s <= 120


@pytest.mark.parametrize("jump_s", [HOURS, -HOURS])
async def test_no_job_is_taken_from_a_worker_that_lives(
    jump_s: float, tmp_path: Path, clock: Clock
) -> None:
    """A lease is counted by the kernel's clock, which nobody sets; its age by one that is kept."""
    writing, looking = (SqliteDatabase(tmp_path / "responses.sqlite") for _ in range(2))
    claim = await SqliteJobs(writing).put(Job("a", "count", "ann", b""), "w1")
    assert claim is not None
    clock.offset_s = jump_s
    assert (await SqliteJobs(looking).due(("count",), 1)).claimable == ()
    assert await SqliteJobs(looking).claim("a", "w2") is None
    assert await SqliteJobs(writing).renew("a", claim.fence)
    assert await SqliteJobs(looking).has("a")
    for database in (writing, looking):
        await database.close()
