"""What every store of jobs does: one suite for SQLite in a file, in memory, and Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from service.jobs import base, redis, sqlite
from service.jobs.base import LEASE_S, MAX_WAIT_S, Claim, Job, JobStore, TooManyJobs

OpenJobs = Callable[[], JobStore]

A = Job("a", "count", "ann", b"to ten")
KINDS = ("count",)


async def due_ids(jobs: JobStore, limit: int = 10) -> list[str]:
    return [id for id, _ in (await jobs.due(KINDS, limit)).claimable]


async def claimed(jobs: JobStore, id: str = "a", owner: str = "w1") -> Claim:
    claim = await jobs.claim(id, owner)
    assert claim is not None
    return claim


async def test_a_job_is_claimed_once_and_found_by_every_worker(open_jobs: OpenJobs) -> None:
    first, second = open_jobs(), open_jobs()
    assert await first.put(A) is None
    assert await due_ids(second) == ["a"]
    claims = await asyncio.gather(
        *(each.claim("a", f"w{n}") for n, each in enumerate([first, second] * 5))
    )
    [claim] = [claim for claim in claims if claim is not None]
    assert (claim.job, claim.fence, claim.cursor, claim.deaths) == (A, 1, b"", 0)
    assert await due_ids(first) == []
    assert await second.has("a")
    assert await second.finish("a", claim.fence)
    assert not await first.has("a")
    assert await first.claim("a", "w1") is None


async def test_one_that_is_put_claimed_is_nobody_elses(jobs: JobStore) -> None:
    claim = await jobs.put(A, "w1")
    assert claim is not None
    assert (claim.job, claim.fence) == (A, 1)
    assert await jobs.claim("a", "w2") is None
    assert await due_ids(jobs) == []


async def test_the_job_of_a_dead_worker_continues_at_its_cursor(
    open_jobs: OpenJobs, clock: Any
) -> None:
    dying, other = open_jobs(), open_jobs()
    claim = await dying.put(A, "w1")
    assert claim is not None
    clock.now_s += 3
    assert await dying.renew("a", claim.fence, b"four")
    clock.now_s += LEASE_S - 0.5
    assert await due_ids(other) == []
    assert await other.claim("a", "w2") is None
    clock.now_s += 1
    assert (await other.due(KINDS, 10)).claimable == (("a", 1),)
    taken = await claimed(other, owner="w2")
    assert (taken.cursor, taken.deaths, taken.fence) == (b"four", 1, claim.fence + 1)


async def test_a_worker_that_comes_back_after_its_lease_changes_nothing(
    open_jobs: OpenJobs, clock: Any
) -> None:
    late, other = open_jobs(), open_jobs()
    claim = await late.put(A, "w1")
    assert claim is not None
    clock.now_s += LEASE_S + 1
    taken = await claimed(other, owner="w2")
    assert not await late.renew("a", claim.fence, b"eight")
    assert not await late.finish("a", claim.fence)
    assert not await late.finish("a", claim.fence, 0)
    assert await other.renew("a", taken.fence)
    clock.now_s += LEASE_S + 1
    assert (await claimed(other, owner="w3")).cursor == b""


async def test_a_late_worker_keeps_a_job_that_nobody_took(jobs: JobStore, clock: Any) -> None:
    """The store was away for longer than the lease, for everybody."""
    claim = await jobs.put(A, "w1")
    assert claim is not None
    clock.now_s += 5 * LEASE_S
    assert await jobs.renew("a", claim.fence, b"four")
    assert await jobs.claim("a", "w2") is None


async def test_what_is_given_back_is_continued_at_once_and_nobody_died(jobs: JobStore) -> None:
    claim = await jobs.put(A, "w1")
    assert claim is not None
    assert await jobs.renew("a", claim.fence, b"four")
    assert await jobs.finish("a", claim.fence, 0)
    assert not await jobs.finish("a", claim.fence, 0)
    taken = await claimed(jobs, owner="w2")
    assert (taken.cursor, taken.deaths, taken.fence) == (b"four", 0, claim.fence + 1)


async def test_what_is_put_off_waits(jobs: JobStore, clock: Any) -> None:
    claim = await jobs.put(A, "w1")
    assert claim is not None
    assert await jobs.finish("a", claim.fence, 5)
    clock.now_s += 4
    assert await jobs.claim("a", "w1") is None
    clock.now_s += 2
    assert (await claimed(jobs)).deaths == 0


async def test_a_worker_that_lives_on_is_cleared_of_earlier_deaths(
    jobs: JobStore, clock: Any
) -> None:
    await jobs.put(A, "w1")
    clock.now_s += LEASE_S + 1
    taken = await claimed(jobs, owner="w2")
    assert taken.deaths == 1
    assert await jobs.renew("a", taken.fence, is_cleared=True)
    clock.now_s += LEASE_S + 1
    assert (await claimed(jobs, owner="w3")).deaths == 1


@pytest.mark.parametrize("jump_s", [-500_000.0, 500_000.0])
async def test_a_clock_that_is_set_holds_up_no_job(
    jobs: JobStore, clock: Any, jump_s: float
) -> None:
    """The host was started again, or a replica of Redis with another clock took over."""
    await jobs.put(A, "w1")
    await jobs.put(replace(A, id="b"), "w1")
    claim = await jobs.put(replace(A, id="c"), "w1")
    assert claim is not None
    assert await jobs.finish("c", claim.fence, MAX_WAIT_S)
    clock.now_s += jump_s
    assert await due_ids(jobs) == ["a", "b", "c"]
    assert (await claimed(jobs, owner="w2")).fence == 2
    assert await jobs.claim("a", "w3") is None


async def test_a_cancel_reaches_who_runs_it_and_what_nobody_runs_is_due(
    open_jobs: OpenJobs, clock: Any
) -> None:
    here, there = open_jobs(), open_jobs()
    running = await here.put(A, "w1")
    waiting = await here.put(replace(A, id="b"), "w1")
    assert running is not None
    assert waiting is not None
    assert await here.finish("b", waiting.fence, MAX_WAIT_S)
    assert await there.stop("a")
    assert await there.stop("b")
    assert not await there.stop("none")
    due = await here.due(KINDS, 10)
    assert "a" in due.stopping
    assert [id for id, _ in due.claimable] == ["b"]
    assert (await claimed(there, "b", "w2")).is_stopping
    assert await here.finish("a", running.fence)
    assert "a" not in (await here.due(KINDS, 10)).stopping


async def test_a_tenant_has_a_bounded_number(
    jobs: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (base, sqlite):
        monkeypatch.setattr(module, "MAX_PER_TENANT", 2)
    monkeypatch.setattr(redis, "_PUT", redis._PUT.replace(">= 1024", ">= 2"))
    first = await jobs.put(A, "w1")
    assert first is not None
    await jobs.put(replace(A, id="b"))
    with pytest.raises(TooManyJobs):
        await jobs.put(replace(A, id="c"))
    assert not await jobs.has("c")
    await jobs.put(replace(A, id="d", tenant="bob"))
    assert await jobs.finish("a", first.fence)
    await jobs.put(replace(A, id="c"))
    with pytest.raises(TooManyJobs):
        await jobs.put(replace(A, id="e"))


async def test_only_known_kinds_are_due_and_no_more_than_there_is_room_for(
    jobs: JobStore,
) -> None:
    await jobs.put(replace(A, id="x", kind="of a later release"))
    for number in range(5):
        await jobs.put(replace(A, id=f"a{number}"))
    assert len(await due_ids(jobs, 3)) == 3
    assert await due_ids(jobs, 0) == []
    assert await due_ids(jobs) == [f"a{number}" for number in range(5)]


async def test_what_no_worker_could_run_is_gone_after_its_time(
    jobs: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await jobs.put(A)
    running = await jobs.put(replace(A, id="b"), "w1")
    assert running is not None
    for module in (redis, sqlite):
        monkeypatch.setattr(module, "MAX_AGE_S", -1.0)
    await jobs.due(KINDS, 10)
    assert not await jobs.has("a")
    assert await jobs.renew("b", running.fence), "it is old, and somebody runs it"


async def test_no_file_is_made_by_looking(tmp_path: Any) -> None:
    from service.jobs.sqlite import SqliteJobs
    from service.store.sqlite import SqliteDatabase

    database = SqliteDatabase(tmp_path / "jobs.sqlite")
    assert await due_ids(SqliteJobs(database)) == []
    assert list(tmp_path.iterdir()) == []
    await database.close()
