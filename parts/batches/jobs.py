"""Batches, as jobs. Each is run by one worker at a time, and continued by another where it dies."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Final

import msgspec

from auth.base import Principal
from parts.batches.run import RunningBatch
from parts.batches.store.base import MissingObject
from parts.batches.stored import storage_of
from service.http.inner import Sender
from service.jobs.base import Claim, JobDeferred, JobRun, kind_name
from service.runtime import Runtime

log = logging.getLogger("harmonium.batches")

KIND: Final = "batch"
_MOST: Final = 8  # that a worker runs at a time
_MOST_OF_TENANT: Final = 2
_AGAIN_S: Final = 10.0  # of one more


class BatchInput(msgspec.Struct):
    """Beside the batch's document: for whom its requests are sent, and how long results last."""

    principal: Principal | None
    lasts_s: int


encode_input: Final = msgspec.msgpack.encode
_decode: Final = msgspec.msgpack.Decoder(BatchInput).decode


class BatchJobs:
    """Implements service.jobs.base.JobKind."""

    max_deaths = 8  # much else may end a worker that runs a batch for hours

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._running: Counter[str] = Counter()  # by tenant; never 0

    async def run(self, run: JobRun) -> None:
        tenant = run.claim.job.tenant
        if run.ending is None and not self._has_place(tenant):
            raise JobDeferred(_AGAIN_S)
        self._running[tenant] += 1
        try:
            batch = await self._entered(run.claim)
            if batch is not None:
                await batch.run(run)
        except MissingObject:
            log.warning("Batch %s or its input is gone", run.claim.job.id)
        finally:
            self._running[tenant] -= 1
            self._running += Counter()  # forgets those of 0

    async def fail(self, claim: Claim, reason: str) -> None:
        try:
            batch = await self._entered(claim)
            if batch is not None:
                await batch.fail("server_error", reason)
        except MissingObject:
            return

    def _has_place(self, tenant: str) -> bool:
        return self._running.total() < _MOST and self._running[tenant] < _MOST_OF_TENANT

    async def _entered(self, claim: Claim) -> RunningBatch | None:
        """The batch, of which this is the only writer from now on; None if it has ended."""
        runtime, id, tenant = self._runtime, claim.job.id, claim.job.tenant
        storage = storage_of(runtime)
        if not await storage.store.write(id, claim.fence, None):
            return None
        given = _decode(claim.job.input)
        found = await storage.store.get("batch", id, tenant)
        return RunningBatch(
            runtime,
            storage,
            found,
            claim.fence,
            Sender(given.principal),
            lambda: self._room(tenant),
            given.lasts_s,
        )

    def _room(self, tenant: str) -> int:
        """How many requests of one batch may run here: tenants have equal parts of the engine's
        places and of a few more, so that none of them is free until the next is sent."""
        num_places = self._runtime.engine.info.max_num_seqs
        num_places += max(num_places // 4, 1)
        return max(num_places // len(self._running) // self._running[tenant], 1)


def batch_kind(runtime: Runtime) -> str:
    return kind_name(KIND, runtime.model.root)


JOBS: Final = {KIND: BatchJobs}
