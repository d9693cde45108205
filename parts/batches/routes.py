"""The routes of batches, and the rows of all."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Query, Request, Response

from auth.base import Forbidden, Scope
from parts.batches.files import routes as file_routes
from parts.batches.files.folder import MAX_AGE_S
from parts.batches.found import found_in, json_of, listed, page_of
from parts.batches.jobs import BatchInput, batch_kind, encode_input
from parts.batches.run import WINDOW_S
from parts.batches.schema import BatchList, BatchObject, BatchRequest
from parts.batches.store.base import MissingObject, StoredObject
from parts.batches.store.base import Query as Listed
from parts.batches.stored import (
    Json,
    Storage,
    document_of,
    encode,
    no_batch,
    no_file,
    storage_of,
)
from service.api.common.operations import operation_id
from service.api.common.schema import ERRORS
from service.errors import RequestError
from service.http.body import JSONRoute
from service.http.paths import PathRow, RouteGroup, Routes
from service.jobs.base import MAX_PER_TENANT, Job, TooManyJobs
from service.runtime import CurrentContext, CurrentRuntime, Runtime

_LAST_FENCE: Final = 1 << 40
_LOST: Final = "The server that was to run it has ended; create the batch again."
router = APIRouter(
    route_class=JSONRoute,
    responses=ERRORS,
    tags=["Batches"],
    generate_unique_id_function=operation_id,
)


@router.post("/v1/batches", response_model=BatchObject)
async def create_batch(
    body: BatchRequest, request: Request, runtime: CurrentRuntime, context: CurrentContext
) -> Response:
    """Run the requests of a file when there is room for them, within a day."""
    runtime.lifecycle.check_accepting()
    principal = context.principal
    if principal is not None and Scope.INFERENCE not in principal.scopes:
        raise Forbidden("the scope inference is missing")
    if request.app.paths.row(body.endpoint).path != body.endpoint:
        message = f"This server has no route {body.endpoint}."
        raise RequestError(message, param="endpoint", code="invalid_value")
    storage = storage_of(runtime)
    await _check_input(storage, body.input_file_id, context.tenant)
    batch = _batch_of(body, runtime, context.tenant)
    lasts_s = body.output_expires_after.seconds if body.output_expires_after else MAX_AGE_S
    input = encode_input(BatchInput(principal, lasts_s))
    try:
        await storage.store.put(batch)
    except MissingObject as error:
        raise no_file(body.input_file_id) from error
    try:
        await runtime.jobs.put(Job(batch.id, batch_kind(runtime), context.tenant, input))
    except TooManyJobs as error:
        failed = _ended_as_failed(document_of(batch), runtime)
        await storage.store.finish(batch.id, _LAST_FENCE, encode(failed), ())
        await storage.store.delete("batch", batch.id, context.tenant)
        raise _too_many() from error
    return json_of(batch.document)


async def _check_input(storage: Storage, id: str, tenant: str) -> None:
    found = await found_in(storage, "file", id, tenant)
    if found.purpose != "batch":
        raise RequestError(
            f"{id} has the purpose {found.purpose}; upload a file with purpose 'batch'.",
            param="input_file_id",
            code="invalid_value",
        )


def _batch_of(body: BatchRequest, runtime: Runtime, tenant: str) -> StoredObject:
    id, now = f"batch_{runtime.new_id()}", int(runtime.clock())
    times = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelled")
    document: Json = {
        "id": id,
        "object": "batch",
        "endpoint": body.endpoint,
        "model": runtime.model.id,
        "errors": None,
        "input_file_id": body.input_file_id,
        "completion_window": body.completion_window,
        "status": "validating",
        "output_file_id": None,
        "error_file_id": None,
        "created_at": now,
        "expires_at": now + WINDOW_S,
        "cancelling_at": None,
        **{f"{name}_at": None for name in times},
        "request_counts": {"total": 0, "completed": 0, "failed": 0},
        "usage": _NO_USAGE,
        "metadata": body.metadata,
    }
    lasts_s = WINDOW_S + MAX_AGE_S
    return StoredObject(id, "batch", tenant, encode(document), lasts_s, uses=body.input_file_id)


_NO_USAGE: Final[Json] = {
    "input_tokens": 0,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 0,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 0,
}


def _too_many() -> RequestError:
    return RequestError(
        f"{MAX_PER_TENANT} jobs of this caller have not ended, which is the limit; wait until one "
        "has, or cancel one.",
        status=429,
        type="rate_limit_error",
        code="rate_limit_exceeded",
        headers={"Retry-After": "60"},
    )


@router.get("/v1/batches", response_model=BatchList)
async def list_batches(
    runtime: CurrentRuntime,
    context: CurrentContext,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> Response:
    """The caller's batches, the newest first, page by page."""
    page = await listed(runtime, Listed("batch", context.tenant, limit, after))
    return page_of(page, [_shown(each) for each in page.objects])


@router.get("/v1/batches/{batch_id}", response_model=BatchObject)
async def get_batch(batch_id: str, runtime: CurrentRuntime, context: CurrentContext) -> Response:
    """How far a batch is."""
    storage = storage_of(runtime)
    found = await found_in(storage, "batch", batch_id, context.tenant)
    if found.uses and not await runtime.jobs.store.has(batch_id):
        # Its worker ended it just now, or the server that was to add its job died.
        failed = encode(_ended_as_failed(document_of(found), runtime))
        await storage.store.finish(batch_id, _LAST_FENCE, failed, ())
        found = await found_in(storage, "batch", batch_id, context.tenant)
    return json_of(encode(_shown(found)))


@router.post("/v1/batches/{batch_id}/cancel", response_model=BatchObject)
async def cancel_batch(batch_id: str, runtime: CurrentRuntime, context: CurrentContext) -> Response:
    """Have a batch end within seconds; what is done is kept."""
    storage = storage_of(runtime)
    try:
        found = await storage.store.cancel(batch_id, context.tenant, int(runtime.clock()))
    except MissingObject as error:
        raise no_batch(batch_id) from error
    if found.uses:
        await runtime.jobs.cancel(batch_id)
    return json_of(encode(_shown(found)))


def _shown(found: StoredObject) -> Json:
    document = document_of(found)
    if found.cancelled_at and (found.uses or document["status"] == "cancelled"):
        document["cancelling_at"] = found.cancelled_at
        if found.uses:
            document["status"] = "cancelling"
    return document


def _ended_as_failed(document: Json, runtime: Runtime) -> Json:
    fault = {"code": "server_error", "message": _LOST, "line": None, "param": None}
    errors = {"object": "list", "data": [fault]}
    now = int(runtime.clock())
    return document | {"status": "failed", "failed_at": now, "errors": errors}


def _rows(*paths: str) -> tuple[PathRow, ...]:
    return tuple(PathRow(path, Scope.BATCH, is_counted=True) for path in paths)


ROUTES: Final = (
    Routes(
        rows=_rows("/v1/files", "/v1/files/{file_id}", "/v1/files/{file_id}/content"),
        router=file_routes.router,
        rank=30,
        groups=(RouteGroup("Batches", "OpenAI's files and batches.", 25),),
    ),
    Routes(
        rows=_rows("/v1/batches", "/v1/batches/{batch_id}", "/v1/batches/{batch_id}/cancel"),
        router=router,
        rank=31,
    ),
)
