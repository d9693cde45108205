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

    max_deaths = MAX_DEATHS

    def __init__(self, said: list[int]) -> None:
        self.said = said  # by all workers
        self.failures: dict[str, str] = {}
        self.num_begun = 0
        self.deferred = 0
        self.is_broken = False
        self.stays_at = END  # here it goes on no more

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
            if number == self.stays_at:
                await run.ended.wait()
                continue
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
    kind.stays_at = 5
    assert await dying.put(A)
    async with asyncio.timeout(60):
        while (await _cursor(dying)) < 5:
            await asyncio.sleep(0.002)
    kill(dying)
    jobs, _ = open_worker()
    await ended(jobs, "a")
    assert kind.said == list(range(END))


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
    async with asyncio.timeout(60):
        while jobs._may_take_over():
            await asyncio.sleep(0.01)
    monkeypatch.setattr(jobs.store, "due", due)
    async with asyncio.timeout(60):
        while not jobs._may_take_over():
            await asyncio.sleep(0.01)


async def test_a_claim_whose_caller_is_cancelled_is_no_lease_of_nobody(
    open_worker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its job would wait for the end of that lease, which then counts as a death."""
    jobs, _ = open_worker(room=0)
    await jobs.put(A)
    claim, is_claimed, is_answered = jobs.store.claim, asyncio.Event(), asyncio.Event()

    async def claim_slowly(id: str, owner: str) -> Claim | None:
        claimed: Claim | None = await claim(id, owner)
        is_claimed.set()
        await is_answered.wait()
        return claimed

    monkeypatch.setattr(jobs.store, "claim", claim_slowly)
    cancelling = asyncio.create_task(jobs.cancel("a"))
    await is_claimed.wait()
    cancelling.cancel()
    await asyncio.wait([cancelling])
    assert cancelling.cancelled()
    is_answered.set()
    async with asyncio.timeout(60):
        while jobs._tasks:
            await asyncio.sleep(0.001)
    given_back = await claim("a", "another")
    assert given_back is not None
    assert given_back.deaths == 0


async def test_a_worker_that_claims_again_what_it_had_is_no_death(open_worker: Any) -> None:
    """The answer to its claim was lost, or it could not give the job back."""
    jobs, _ = open_worker(room=0)
    await jobs.put(A)
    for _ in range(MAX_DEATHS + 1):
        async with asyncio.timeout(60):
            while (claim := await jobs.store.claim("a", "living")) is None:
                await asyncio.sleep(0.01)
        assert claim.deaths == 0


async def test_jobs_behind_those_of_a_dead_worker_do_not_wait_for_them(open_worker: Any) -> None:
    first, _ = open_worker(room=0)
    for id in "abcd":
        await first.put(replace(A, id=id))
        await first.store.claim(id, "dead")
    await first.put(replace(A, id="e"))
    async with asyncio.timeout(60):
        while len((await first.store.due(("count",), 9)).claimable) < 5:
            await asyncio.sleep(0.01)
    other, kind = open_worker(room=3)
    kind.stays_at = 0
    async with asyncio.timeout(60):
        while "e" not in other.runs:
            assert len(other.runs) <= 3
            await asyncio.sleep(0.001)


async def test_a_job_that_cannot_even_fail_is_removed(open_worker: Any) -> None:
    jobs, kind = open_worker()
    kind.is_broken = True

    async def fail(claim: Claim, reason: str) -> None:
        raise ValueError("another fault of the kind")

    kind.fail = fail
    await jobs.put(A)
    await ended(jobs, "a")
    assert kind.num_begun == 1


async def test_a_job_of_another_model_is_left_to_its_service(open_worker: Any) -> None:
    """It may be cancelled here all the same: they share a Redis."""
    jobs, kind = open_worker()
    await jobs.put(replace(A, kind="count for another"))
    assert await jobs.cancel("a")
    async with asyncio.timeout(60):
        while jobs.runs:
            await asyncio.sleep(0.01)
    assert kind.num_begun == 0
    claim = await jobs.store.claim("a", "of that model")
    assert claim is not None
    assert (claim.is_stopping, claim.deaths) == (True, 0)
