"""What a worker does with jobs: claims, keeps, gives back, and what it does not do twice."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from service.jobs import sqlite, worker
from service.jobs.base import MAX_DEATHS, Claim, Job, JobDeferred, JobRun
from service.jobs.worker import Jobs, jobs_on
from service.store.base import StoreError
from service.store.sqlite import SqliteDatabase

A = Job("a", "count", "ann", b"")
END = 40


class Counting:
    """Counts to END, a step at a time, from its cursor on."""

    def __init__(self, said: list[int]) -> None:
        self.said = said  # by all workers
        self.failures: dict[str, str] = {}
        self.num_begun = 0
        self.deferred = 0
        self.is_broken = False

    async def run(self, run: JobRun) -> None:
        self.num_begun += 1
        if self.deferred:
            self.deferred -= 1
            raise JobDeferred(0)
        if self.is_broken:
            raise ValueError("a fault of the kind")
        for number in itertools.count(int(run.claim.cursor or b"0")):
            if number == END:
                return
            if run.ending is not None:
                raise JobDeferred(0)
            self.said.append(number)
            run.cursor = b"%d" % (number + 1)
            await asyncio.sleep(0.002)

    async def fail(self, claim: Claim, reason: str) -> None:
        self.failures[claim.job.id] = reason


@pytest.fixture(autouse=True)
def short_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (sqlite, worker):
        monkeypatch.setattr(module, "LEASE_S", 0.2)
    monkeypatch.setattr(worker, "RENEW_S", 0.0)
    monkeypatch.setattr(worker, "LOOK_S", 0.01)


@pytest.fixture
async def open_worker(tmp_path: Path) -> AsyncIterator[Callable[..., tuple[Jobs, Counting]]]:
    """A worker that claims what is due; all count together."""
    said: list[int] = []
    opened: list[tuple[Jobs, SqliteDatabase]] = []

    def start(room: int = 4) -> tuple[Jobs, Counting]:
        database = SqliteDatabase(tmp_path / "jobs.sqlite")
        jobs, kind = jobs_on(database), Counting(said)
        jobs.kinds = {"count": kind}
        jobs.start(lambda: room)
        opened.append((jobs, database))
        return jobs, kind

    yield start
    for jobs, database in opened:
        await jobs.close(5)
        await database.close()


async def ended(jobs: Jobs, *ids: str) -> None:
    async with asyncio.timeout(60):
        while any([await jobs.store.has(id) for id in ids]):
            await asyncio.sleep(0.01)


def kill(jobs: Jobs) -> None:
    assert jobs._working is not None
    for task in (*jobs._tasks, jobs._working):
        task.cancel()
    jobs._tasks.clear()
    jobs.runs.clear()


async def test_a_dead_workers_job_continues_at_its_cursor(open_worker: Any) -> None:
    dying, kind = open_worker()
    assert await dying.put(A)
    async with asyncio.timeout(60):
        while (await _cursor(dying)) < 5:
            await asyncio.sleep(0.002)
    kill(dying)
    jobs, _ = open_worker()
    await ended(jobs, "a")
    again = [n for n, earlier in zip(kind.said[1:], kind.said, strict=False) if n <= earlier]
    assert len(again) == 1, "it goes back once, to its cursor"
    assert again[0] >= 5
    assert kind.said[-1] == END - 1


async def _cursor(jobs: Jobs) -> int:
    """How far the store knows."""
    assert isinstance(jobs.store, sqlite.SqliteJobs)
    rows = await jobs.store._database.run(
        lambda connection: connection.execute("SELECT cursor FROM jobs").fetchall()
    )
    return int(rows[0][0] or b"0") if rows else END


async def test_a_graceful_stop_hands_over_at_once_and_no_number_twice(open_worker: Any) -> None:
    stopping, kind = open_worker()
    await stopping.put(A)
    async with asyncio.timeout(60):
        while len(kind.said) < 5:
            await asyncio.sleep(0.002)
    run = stopping.runs["a"]
    await stopping.release()
    assert not stopping.runs
    assert not await stopping.put(replace(A, id="b")), "it begins no more"
    assert await stopping.store.has("b")
    jobs, other = open_worker()
    await ended(jobs, "a", "b")
    assert other.num_begun == 2
    assert run.claim.deaths == 0


async def test_more_than_there_is_room_for_waits(open_worker: Any) -> None:
    jobs, _ = open_worker(room=1)
    assert await jobs.put(A)
    assert not await jobs.put(replace(A, id="b"))
    assert list(jobs.runs) == ["a"]
    await ended(jobs, "a", "b")


async def test_what_kills_twice_is_not_run_again(open_worker: Any) -> None:
    jobs, _ = open_worker(room=0)
    await jobs.put(A)
    for number in range(MAX_DEATHS):
        async with asyncio.timeout(60):
            while await jobs.store.claim("a", f"doomed {number}") is None:
                await asyncio.sleep(0.01)
    last, kind = open_worker()
    await ended(last, "a")
    assert kind.num_begun == 0
    assert f"{MAX_DEATHS} times" in kind.failures["a"]


async def test_jobs_that_may_have_killed_run_one_at_a_time(open_worker: Any) -> None:
    """So that the second death convicts one, and no neighbour of it."""
    jobs, _ = open_worker(room=0)
    for id in "abc":
        await jobs.put(replace(A, id=id))
        await jobs.store.claim(id, "dead")
    await asyncio.sleep(0.25)  # their leases
    assert [deaths for _, deaths in (await jobs.store.due(("count",), 9)).claimable] == [1, 1, 1]
    other, _ = open_worker()
    at_once = 0
    async with asyncio.timeout(60):
        while any([await other.store.has(id) for id in "abc"]):
            suspects = [r for r in other.runs.values() if r.claim.deaths and not r.is_cleared]
            at_once = max(at_once, len(suspects))
            await asyncio.sleep(0.001)
    assert at_once == 1


async def test_what_cannot_be_begun_now_is_begun_later(open_worker: Any) -> None:
    jobs, kind = open_worker()
    kind.deferred = 2
    await jobs.put(A)
    await ended(jobs, "a")
    assert kind.num_begun == 3
    assert not kind.failures


async def test_a_fault_of_the_kind_ends_the_job(open_worker: Any) -> None:
    jobs, kind = open_worker()
    kind.is_broken = True
    await jobs.put(A)
    await ended(jobs, "a")
    assert kind.num_begun == 1
    assert "internal error" in kind.failures["a"]


async def test_after_the_store_was_away_whoever_lives_renews_first(
    open_worker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All leases are over then, and no worker has died."""
    jobs, _ = open_worker()

    async def away(*_: Any) -> Any:
        raise StoreError("away")

    due = jobs.store.due
    monkeypatch.setattr(jobs.store, "due", away)
    with pytest.raises(StoreError):
        await jobs._look()
    await asyncio.sleep(0.05)  # it has seen it by itself, too
    monkeypatch.setattr(jobs.store, "due", due)
    assert not jobs._may_take_over()
    async with asyncio.timeout(60):
        while not jobs._may_take_over():
            await asyncio.sleep(0.01)
