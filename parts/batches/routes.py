"""The routes of batches, and the rows of all."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Query, Request, Response

from auth.base import Scope
from parts.batches.begun import begin, cancelled, check_may_begin, new_batch, present
from parts.batches.files import routes as file_routes
from parts.batches.files.folder import MAX_AGE_S
from parts.batches.messages import routes as message_routes
from parts.batches.schema import BatchList, BatchObject, BatchRequest
from parts.batches.store.base import Query as Listed
from parts.batches.store.base import StoredObject
from parts.batches.stored import (
    Json,
    Storage,
    document_of,
    encode,
    found_in,
    json_of,
    listed,
    page_of,
    storage_of,
)
from service.api.common.operations import json_router
from service.errors import RequestError
from service.http.paths import PathRow, RouteGroup, Routes
from service.runtime import CurrentContext, CurrentRuntime

router = json_router("Batches")


@router.post("/v1/batches", response_model=BatchObject)
async def create_batch(
    body: BatchRequest, request: Request, runtime: CurrentRuntime, context: CurrentContext
) -> Response:
    """Run the requests of a file when there is room for them, within a day."""
    check_may_begin(request.app.paths, body.endpoint, runtime, context)
    storage = storage_of(runtime)
    await _check_input(storage, body.input_file_id, context.tenant)
    id = f"batch_{runtime.new_id()}"
    file_id, metadata = body.input_file_id, body.metadata
    batch = new_batch(runtime, context.tenant, id, body.endpoint, file_id, metadata)
    lasts_s = body.output_expires_after.seconds if body.output_expires_after else MAX_AGE_S
    await begin(runtime, storage, batch, context, lasts_s)
    return json_of(batch.document)


async def _check_input(storage: Storage, id: str, tenant: str) -> None:
    found = await found_in(storage, "file", id, tenant)
    if found.purpose != "batch":
        raise RequestError(
            f"{id} has the purpose {found.purpose}; upload a file with purpose 'batch'.",
            param="input_file_id",
            code="invalid_value",
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
    found = await present(runtime, storage_of(runtime), batch_id, context.tenant)
    return json_of(encode(_shown(found)))


@router.post("/v1/batches/{batch_id}/cancel", response_model=BatchObject)
async def cancel_batch(batch_id: str, runtime: CurrentRuntime, context: CurrentContext) -> Response:
    """Have a batch end within seconds; what is done is kept."""
    found = await cancelled(runtime, storage_of(runtime), batch_id, context.tenant)
    return json_of(encode(_shown(found)))


def _shown(found: StoredObject) -> Json:
    document = document_of(found)
    document.pop("not_run", None)
    if found.cancelled_at and (found.uses or document["status"] == "cancelled"):
        document["cancelling_at"] = found.cancelled_at
        if found.uses:
            document["status"] = "cancelling"
    return document


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
    message_routes.ROUTES,
)
