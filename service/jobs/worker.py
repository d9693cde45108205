"""The jobs of this worker: claimed when they are due, kept while it lives, given back at its stop.

A job whose worker died may have killed it. So of such jobs a worker claims one at a time, and no
other until that one has run for a lease: what kills twice is then one job and no neighbour of it.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Final, TypeVar

from starlette.types import ASGIApp

from service.jobs.base import (
    LEASE_S,
    RENEW_S,
    Claim,
    Ending,
    Job,
    JobDeferred,
    JobKind,
    JobRun,
    JobStore,
)
from service.jobs.redis import RedisJobs
from service.jobs.sqlite import SqliteJobs
from service.store.base import StoreError
from service.store.sqlite import Database, SqliteDatabase

log = logging.getLogger(__name__)

R = TypeVar("R")

LOOK_S: Final = 1.0
_AHEAD: Final = 256  # jobs looked at beyond the room: those before may have to wait for each other
_KILLED: Final = (
    "Its server process ended unexpectedly {} times while it ran; it is not tried again."
)
_BROKEN: Final = "An internal error ended it."


class Jobs:
    """Claims and runs jobs; one per process."""

    def __init__(self, store: JobStore, lasts: Callable[[], Awaitable[bool]]) -> None:
        """`lasts`: whether other processes find the jobs that are given back."""
        self.store = store
        self._lasts = lasts
        self.kinds: Mapping[str, JobKind] = {}
        self.app: ASGIApp | None = None  # what serves the requests that jobs send
        self.runs: dict[str, JobRun] = {}
        self._owner = uuid.uuid4().hex
        self._room: Callable[[], int] = lambda: 1 << 20
        self._tasks: set[asyncio.Task[Any]] = set()  # of jobs, and of claims
        self._working: asyncio.Task[None] | None = None
        self._patient_until = 0.0  # a worker that lives may renew first, after the store was away
        self._is_released = False

    def start(self, room: Callable[[], int]) -> None:
        """Claim what is due from now on; `room`: how many jobs may run at a time."""
        self._room = room
        self._work()

    async def put(self, job: Job) -> bool:
        """Add a job, and run it here if there is room; raises StoreError and TooManyJobs."""
        is_here = not self._is_released and len(self.runs) < self._room()
        return await self._begun(self.store.put(job, self._owner if is_here else None))

    async def cancel(self, id: str) -> bool:
        """Have a job cancelled, here or where it runs; false if there is none."""
        if not await self.store.stop(id):
            return False
        if id in self.runs:
            self.runs[id].end(Ending.CANCELLED)
        else:
            await self._begun(self.store.claim(id, self._owner))
        return True

    async def release(self) -> None:
        """Give all jobs back, for other workers to continue, and claim no more; those that no
        other worker can continue have run to their end."""
        self._is_released = True
        if not await self._lasts():
            return
        await self._stop_all()

    async def _stop_all(self) -> None:
        for run in self.runs.values():
            run.end(Ending.RELEASED)
        while self._tasks:  # a claim that is on its way begins another
            await asyncio.wait(self._tasks)

    async def close(self, timeout_s: float) -> None:
        """Give back what still runs, and stop; what does not end in time is cut off."""
        self._is_released = True
        try:
            async with asyncio.timeout(timeout_s):
                await self._stop_all()
        except TimeoutError:
            log.warning("Jobs that did not stop in %g s: %d.", timeout_s, len(self._tasks))
        for task in [*self._tasks, *([self._working] if self._working else [])]:
            task.cancel()

    def _work(self) -> None:
        if self._working is None:
            self._working = asyncio.create_task(self._looking(), name="jobs")

    async def _looking(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self._look()
            except StoreError as error:
                log.debug("Jobs cannot be looked for: %s", error)
                self._patient_until = _now() + LEASE_S
            except Exception:
                log.exception("Jobs cannot be looked for")

    async def _look(self) -> None:
        await self._renew()
        room = 0 if self._is_released else self._room() - len(self.runs)
        due = await self.store.due(tuple(self.kinds), room + _AHEAD if room > 0 else 0)
        for id in due.stopping.intersection(self.runs):
            self.runs[id].end(Ending.CANCELLED)
        for id, deaths in due.claimable:
            if self._is_released or len(self.runs) >= self._room():
                break
            if id in self.runs or (deaths and not self._may_take_over()):
                continue
            await self._begun(self.store.claim(id, self._owner))

    def _may_take_over(self) -> bool:
        has_suspect = any(
            run.claim.deaths and not run.is_cleared and run.ending is not Ending.LOST
            for run in self.runs.values()
        )
        return not has_suspect and _now() >= self._patient_until

    async def _renew(self) -> None:
        for id, run in list(self.runs.items()):
            if _now() - run.renewed_at < RENEW_S or run.ending is Ending.LOST:
                continue
            is_cleared = _now() - run.begun_at >= LEASE_S
            if await self.store.renew(id, run.claim.fence, run.cursor, is_cleared=is_cleared):
                run.renewed_at, run.is_cleared = _now(), is_cleared
            elif self.runs.get(id) is run:  # else it has ended meanwhile
                log.warning("Job %s: another worker has it now", id)
                run.end(Ending.LOST)

    async def _begun(self, claiming: Coroutine[Any, Any, Claim | None]) -> bool:
        """Run what is claimed, if it is; also when the caller is cancelled meanwhile: else no
        worker would run the job until its lease is over, which counts as a death."""
        return await asyncio.shield(self._spawn(self._claimed(claiming), "claim"))

    async def _claimed(self, claiming: Coroutine[Any, Any, Claim | None]) -> bool:
        claim = await claiming
        if claim is not None:
            self._begin(claim)
        return claim is not None

    def _begin(self, claim: Claim) -> None:
        self._work()
        run = self.runs[claim.job.id] = JobRun(claim, _now(), renewed_at=_now())
        if claim.is_stopping:
            run.end(Ending.CANCELLED)
        elif self._is_released:
            run.end(Ending.RELEASED)
        self._spawn(self._run(run), f"job {claim.job.id}")

    def _spawn(self, work: Coroutine[Any, Any, R], name: str) -> asyncio.Task[R]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _run(self, run: JobRun) -> None:
        id, again_s = run.claim.job.id, None
        try:
            await self._do(run)
        except JobDeferred as deferred:
            again_s = deferred.again_s
        except StoreError as error:
            log.warning("Job %s could not be stored, and is tried again: %s", id, error)
            again_s = LOOK_S
        except Exception:  # it would be claimed and fail for ever
            log.exception("Job %s failed, which could not be stored", id)
        finally:
            self.runs.pop(id, None)
        if run.ending is Ending.LOST:
            return
        try:
            await self.store.finish(id, run.claim.fence, again_s)
        except StoreError as error:  # its lease will be over
            log.debug("Job %s was not given back: %s", id, error)

    async def _do(self, run: JobRun) -> None:
        claim = run.claim
        kind = self.kinds.get(claim.job.kind)
        if kind is None:  # cancelled here, by a service of another model
            raise JobDeferred(0)
        if claim.deaths >= kind.max_deaths and run.ending is None:
            log.error("Job %s killed its worker %d times", claim.job.id, claim.deaths)
            await kind.fail(claim, _KILLED.format(claim.deaths))
            return
        try:
            await kind.run(run)
        except (JobDeferred, StoreError):
            raise
        except Exception:
            log.exception("Job %s failed", claim.job.id)
            await kind.fail(claim, _BROKEN)


def jobs_on(database: Database) -> Jobs:
    """The jobs that are kept in this database."""
    if isinstance(database, SqliteDatabase):
        return Jobs(SqliteJobs(database), database.lasts)
    return Jobs(RedisJobs(database), database.lasts)


def _now() -> float:
    return asyncio.get_running_loop().time()
