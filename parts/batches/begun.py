"""A batch as the routes of both APIs begin it, look at it and cancel it."""

from __future__ import annotations

from typing import Final

from auth.base import Forbidden, Scope
from parts.batches.files.folder import MAX_AGE_S
from parts.batches.jobs import BatchInput, batch_kind, encode_input
from parts.batches.run import WINDOW_S
from parts.batches.store.base import MissingObject, StoredObject
from parts.batches.stored import Json, Storage, document_of, encode, found_in, no_batch, no_file
from service.errors import RequestError
from service.http.paths import Paths
from service.jobs.base import MAX_PER_TENANT, Job, TooManyJobs
from service.request import RequestContext
from service.runtime import Runtime

_LAST_FENCE: Final = 1 << 40
_LOST: Final = "The server that was to run it has ended; create the batch again."
_NO_USAGE: Final[Json] = {
    "input_tokens": 0,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 0,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 0,
}


def check_may_begin(paths: Paths, endpoint: str, runtime: Runtime, context: RequestContext) -> None:
    runtime.lifecycle.check_accepting()
    principal = context.principal
    if principal is not None and Scope.INFERENCE not in principal.scopes:
        raise Forbidden("the scope inference is missing")
    if paths.row(endpoint).path != endpoint:
        message = f"This server has no route {endpoint}."
        raise RequestError(message, param="endpoint", code="invalid_value")


def new_batch(
    runtime: Runtime,
    tenant: str,
    id: str,
    endpoint: str,
    file_id: str,
    metadata: dict[str, str] | None = None,
    purpose: str = "",
) -> StoredObject:
    now = int(runtime.clock())
    times = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelled")
    document: Json = {
        "id": id,
        "object": "batch",
        "endpoint": endpoint,
        "model": runtime.model.id,
        "errors": None,
        "input_file_id": file_id,
        "completion_window": "24h",
        "status": "validating",
        "output_file_id": None,
        "error_file_id": None,
        "created_at": now,
        "expires_at": now + WINDOW_S,
        "cancelling_at": None,
        **{f"{name}_at": None for name in times},
        "request_counts": {"total": 0, "completed": 0, "failed": 0},
        "usage": _NO_USAGE,
        "metadata": metadata,
    }
    lasts_s = WINDOW_S + MAX_AGE_S
    return StoredObject(id, "batch", tenant, encode(document), lasts_s, purpose, uses=file_id)


async def begin(
    runtime: Runtime,
    storage: Storage,
    batch: StoredObject,
    context: RequestContext,
    lasts_s: int = MAX_AGE_S,
) -> None:
    """Store a new batch, and its job; `lasts_s`: of its results."""
    input = encode_input(BatchInput(context.principal, lasts_s))
    try:
        await storage.store.put(batch)
    except MissingObject as error:
        raise no_file(batch.uses) from error
    try:
        await runtime.jobs.put(Job(batch.id, batch_kind(runtime), context.tenant, input))
    except TooManyJobs as error:
        failed = _ended_as_failed(document_of(batch), runtime)
        await storage.store.finish(batch.id, _LAST_FENCE, encode(failed), ())
        await storage.store.delete("batch", batch.id, context.tenant)
        raise _too_many() from error


async def present(runtime: Runtime, storage: Storage, id: str, tenant: str) -> StoredObject:
    """The batch, ended where no server will ever run it; raises RequestError."""
    found = await found_in(storage, "batch", id, tenant)
    if found.uses and not await runtime.jobs.store.has(id):
        # Its worker ended it just now, or the server that was to add its job died.
        failed = encode(_ended_as_failed(document_of(found), runtime))
        await storage.store.finish(id, _LAST_FENCE, failed, ())
        found = await found_in(storage, "batch", id, tenant)
    return found


async def cancelled(runtime: Runtime, storage: Storage, id: str, tenant: str) -> StoredObject:
    """The batch, which ends within seconds; raises RequestError."""
    try:
        found = await storage.store.cancel(id, tenant, int(runtime.clock()))
    except MissingObject as error:
        raise no_batch(id) from error
    if found.uses:
        await runtime.jobs.cancel(id)
    return found


def _ended_as_failed(document: Json, runtime: Runtime) -> Json:
    fault = {"code": "server_error", "message": _LOST, "line": None, "param": None}
    errors = {"object": "list", "data": [fault]}
    now = int(runtime.clock())
    return document | {"status": "failed", "failed_at": now, "errors": errors}


def _too_many() -> RequestError:
    return RequestError(
        f"{MAX_PER_TENANT} jobs of this caller have not ended, which is the limit; wait until one "
        "has, or cancel one.",
        status=429,
        type="rate_limit_error",
        code="rate_limit_exceeded",
        headers={"Retry-After": "60"},
    )
