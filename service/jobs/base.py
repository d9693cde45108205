"""Detached work: what continues without the client that asked for it, whichever process dies.

A job is a row in the store. The worker that claims it has a lease, which it renews; a job whose
lease is over is claimed by another worker. Each claim of a job has a higher number, its fence: who
writes for a job passes the fence on, and a store refuses a lower one than it has seen. So a worker
that comes back after its lease writes nothing more.
Times are of the store's clock alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol

LEASE_S: Final = 10.0
RENEW_S: Final = 3.0
MAX_WAIT_S: Final = 60.0  # until a job that was given back is due again
# A lease that lasts longer than any can is of another clock, as before a restart of the host.
LONGEST_S: Final = max(LEASE_S, MAX_WAIT_S)
MAX_DEATHS: Final = 2  # the usual max_deaths of a kind
MAX_PER_TENANT: Final = 1024  # jobs that have not ended
MAX_AGE_S: Final = 30 * 24 * 3600.0  # of a job that no worker could run


class TooManyJobs(Exception):
    """The tenant has MAX_PER_TENANT jobs that have not ended."""


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be done, and for whom."""

    id: str
    kind: str
    tenant: str
    input: bytes


@dataclass(frozen=True, slots=True)
class Claim:
    """A job as the worker that claimed it has it."""

    job: Job
    fence: int
    cursor: bytes = b""  # how far it came, as its kind writes it
    deaths: int = 0  # of workers that ran it
    age_s: float = 0.0  # since it was put
    is_stopping: bool = False  # it was cancelled


@dataclass(frozen=True, slots=True)
class Due:
    """What is there to do for a worker."""

    claimable: tuple[tuple[str, int], ...] = ()  # ids, each with its deaths; the oldest first
    stopping: frozenset[str] = frozenset()  # jobs that run and are to be cancelled


class JobStore(Protocol):
    """The rows; each call is one transaction, and raises StoreError."""

    async def put(self, job: Job, owner: str | None = None) -> Claim | None:
        """Add a job, claimed by its owner if there is one; raises TooManyJobs."""

    async def claim(self, id: str, owner: str) -> Claim | None:
        """Claim a job that is due; None when it is not, or is gone.

        Its last worker has died if that was not the same owner, who lives.
        """

    async def renew(
        self, id: str, fence: int, cursor: bytes | None = None, *, is_cleared: bool = False
    ) -> bool:
        """Extend the lease, and keep the cursor; false when another has claimed it, or it is gone.

        `is_cleared`: forget the deaths of its workers.
        """

    async def finish(self, id: str, fence: int, again_s: float | None = None) -> bool:
        """Remove a job that has ended, or give it back to be claimed in `again_s`; false as for
        renew()."""

    async def due(self, kinds: Collection[str], limit: int) -> Due:
        """What may be claimed of these kinds, and what is to be stopped."""

    async def stop(self, id: str) -> bool:
        """Have a job cancelled, by whichever worker has it or claims it; false if there is none."""

    async def has(self, id: str) -> bool:
        """Whether the job has not ended."""


class Ending(StrEnum):
    """Why a job's worker is to leave it before its end."""

    CANCELLED = "cancelled"
    RELEASED = "released"  # the worker stops, and another continues
    LOST = "lost"  # another has claimed it, or it is gone: nothing more can be written


class JobDeferred(Exception):
    """There is no room for the job now: it is to be claimed again later."""

    def __init__(self, again_s: float) -> None:
        super().__init__(f"again in {again_s:g} s")
        self.again_s = min(again_s, MAX_WAIT_S)


@dataclass(slots=True, eq=False)
class JobRun:
    """A job while this worker has it."""

    claim: Claim
    begun_at: float  # on the running loop's clock
    cursor: bytes | None = None  # to be kept with the next renewal, if its kind has set it
    ending: Ending | None = None
    renewed_at: float = 0.0
    is_cleared: bool = False  # it has run for long enough not to be what killed another worker
    ended: asyncio.Event = field(default_factory=asyncio.Event)  # `ending` is set

    def end(self, ending: Ending) -> None:
        """Have the worker leave the job; the first reason counts, but a lost one is lost."""
        if self.ending is None or ending is Ending.LOST:
            self.ending = ending
        self.ended.set()


def kind_name(name: str, model: str) -> str:
    """The kind of a job for one model: services of several models may share a Redis."""
    return f"{name} {model}"


class JobKind(Protocol):
    """JOBS of parts/<name>/jobs.py has such by name, made with the runtime of the worker."""

    max_deaths: int  # of workers that ran a job in a short time, before it ends with an error

    async def run(self, run: JobRun) -> None:
        """Do the job from its cursor on; returns when it has ended, or soon after `run.ended`.

        Raises JobDeferred when it cannot be begun now. Any other error ends the job.
        """

    async def fail(self, claim: Claim, reason: str) -> None:
        """Store that the job ends unfinished; the reason is for its client."""
