"""The routes of files and batches."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any, Final, Literal

import msgspec
from fastapi import APIRouter, Query, Request, Response
from starlette.responses import FileResponse

from auth.base import Forbidden, Scope
from parts.batches.folder import MAX_AGE_S
from parts.batches.jobs import BatchInput, batch_kind, encode_input
from parts.batches.lines import MAX_LINES
from parts.batches.run import WINDOW_S
from parts.batches.schema import (
    MIN_AGE_S,
    BatchList,
    BatchObject,
    BatchRequest,
    DeletedFile,
    FileList,
    FileObject,
)
from parts.batches.store.base import (
    NUM_SWEPT,
    Kind,
    MissingObject,
    ObjectInUse,
    Page,
    StorageFull,
    StoredObject,
)
from parts.batches.store.base import Query as Listed
from parts.batches.stored import (
    Json,
    Storage,
    document_of,
    encode,
    file_object,
    no_batch,
    no_file,
    storage_full,
    storage_of,
)
from parts.batches.upload import Upload, receive_upload
from service.api.common.operations import operation_id
from service.api.common.schema import ERRORS
from service.errors import RequestError
from service.http.body import JSONRoute
from service.http.paths import PathRow, RouteGroup, Routes
from service.jobs.base import MAX_PER_TENANT, Job, TooManyJobs
from service.runtime import CurrentContext, CurrentRuntime, Runtime

_LAST_FENCE: Final = 1 << 40
_SWEPT_EVERY_S: Final = 60.0
_LOST: Final = "The server that was to run it has ended; create the batch again."
_FORM: Final = {
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": ["file", "purpose"],
                "properties": {
                    "file": {"type": "string", "format": "binary"},
                    "purpose": {"type": "string", "enum": ["batch"]},
                    "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
                    "expires_after[seconds]": {
                        "type": "integer",
                        "minimum": MIN_AGE_S,
                        "maximum": MAX_AGE_S,
                    },
                },
            }
        }
    },
}
_CONTENT: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "content": {"application/jsonl": {"schema": {"type": "string"}}},
        "description": "What the file holds.",
    }
}
Order = Literal["asc", "desc"]

router = APIRouter(
    route_class=JSONRoute,
    responses=ERRORS,
    tags=["Batches"],
    generate_unique_id_function=operation_id,
)


class _Sweeping:
    """When this process last looked for files whose time is over."""

    at_s = -_SWEPT_EVERY_S


@router.post("/v1/files", response_model=FileObject, openapi_extra={"requestBody": _FORM})
async def create_file(
    request: Request, runtime: CurrentRuntime, context: CurrentContext
) -> Response:
    """Upload the requests of a batch: a JSON object on each line."""
    storage = storage_of(runtime)
    await _sweep(storage)
    id = f"file-{runtime.new_id()}"
    content = f"{id}.jsonl"
    is_kept = False
    try:
        length = request.headers.get("content-length", "0")
        room = await storage.store.room(context.tenant)
        if room <= 0 or (length.isdigit() and int(length) > room):
            raise StorageFull(is_of_tenant=True)
        upload = await receive_upload(request, storage.folder, content)
        file = _file_of(id, upload, runtime, context.tenant)
        await storage.store.put(file)
        is_kept = True
    except StorageFull as error:
        raise storage_full(error, storage.bounds) from error
    finally:
        if not is_kept:
            await storage.remove(content)
    return _json(file.document)


def _file_of(id: str, upload: Upload, runtime: Runtime, tenant: str) -> StoredObject:
    """The new file; raises RequestError for what cannot be served of the form."""
    purpose, lasts_s = upload.fields.pop("purpose", None), _lasts_s(upload)
    if upload.filename is None:
        raise _missing("file")
    if purpose is None:
        raise _missing("purpose")
    if purpose != "batch":
        raise RequestError(
            f"purpose is {purpose[:80]!r}; this server takes files for batches only: send 'batch'.",
            param="purpose",
            code="invalid_value",
        )
    if upload.fields:
        field = next(iter(upload.fields))[:80]
        message = f"{field} is not a field of this form; leave it out."
        raise RequestError(message, param=field, code="unknown_parameter")
    if upload.num_lines > MAX_LINES:
        raise RequestError(
            f"The file has {upload.num_lines} lines; at most {MAX_LINES} are taken. Split it into "
            "several.",
            param="file",
            code="batch_too_large",
        )
    now = int(runtime.clock())
    document = file_object(id, upload.filename, purpose, upload.num_bytes, now, lasts_s)
    return StoredObject(
        id,
        "file",
        tenant,
        encode(document),
        lasts_s,
        purpose=purpose,
        content=upload.content,
        num_bytes=upload.num_bytes,
    )


def _lasts_s(upload: Upload) -> int:
    anchor = upload.fields.pop("expires_after[anchor]", None)
    seconds = upload.fields.pop("expires_after[seconds]", None)
    if anchor is None and seconds is None:
        return MAX_AGE_S
    if anchor != "created_at":
        message = "expires_after[anchor] must be created_at."
        raise RequestError(message, param="expires_after[anchor]", code="invalid_value")
    is_number = seconds is not None and seconds.isascii() and seconds.isdigit()
    if not (seconds and is_number and len(seconds) < 10):
        raise _wrong_seconds()
    if not MIN_AGE_S <= int(seconds) <= MAX_AGE_S:
        raise _wrong_seconds()
    return int(seconds)


def _wrong_seconds() -> RequestError:
    return RequestError(
        f"expires_after[seconds] must be a whole number from {MIN_AGE_S} to {MAX_AGE_S}.",
        param="expires_after[seconds]",
        code="invalid_value",
    )


def _missing(field: str) -> RequestError:
    return RequestError(
        f"The form has no field {field!r}; send file and purpose.",
        param=field,
        code="missing_required_parameter",
    )


@router.get("/v1/files", response_model=FileList)
async def list_files(
    runtime: CurrentRuntime,
    context: CurrentContext,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
    order: Order = "desc",
    purpose: str | None = None,
) -> Response:
    """The caller's files, page by page."""
    query = Listed("file", context.tenant, limit, after, order == "asc", purpose)
    return _page(await _listed(runtime, query), [])


@router.get("/v1/files/{file_id}", response_model=FileObject)
async def get_file(file_id: str, runtime: CurrentRuntime, context: CurrentContext) -> Response:
    """A file, without what it holds."""
    found = await _found(storage_of(runtime), "file", file_id, context.tenant)
    return _json(found.document)


@router.delete("/v1/files/{file_id}")
async def delete_file(
    file_id: str, runtime: CurrentRuntime, context: CurrentContext
) -> DeletedFile:
    """Delete a file that no running batch reads."""
    storage = storage_of(runtime)
    try:
        gone = await storage.store.delete("file", file_id, context.tenant)
    except MissingObject as error:
        raise no_file(file_id) from error
    except ObjectInUse as error:
        raise RequestError(
            f"A batch that has not ended reads {file_id}; wait for its end, or cancel it.",
            status=409,
            param="file_id",
            code="file_in_use",
        ) from error
    await storage.remove(gone.content)
    return DeletedFile(id=file_id)


@router.get("/v1/files/{file_id}/content", response_class=Response, responses=_CONTENT)
async def get_file_content(
    file_id: str, runtime: CurrentRuntime, context: CurrentContext
) -> Response:
    """What a file holds."""
    storage = storage_of(runtime)
    found = await _found(storage, "file", file_id, context.tenant)
    path = storage.folder.of(found.content)
    if not path.exists():
        raise RequestError(
            f"The content of {file_id} is not in this server's folder (NIM_FILES_PATH), which "
            "servers with a common Redis have to share.",
            status=500,
            type="server_error",
            code="file_content_missing",
        )
    name = document_of(found)["filename"]
    return FileResponse(path, media_type="application/jsonl", filename=name)


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
    return _json(batch.document)


async def _check_input(storage: Storage, id: str, tenant: str) -> None:
    found = await _found(storage, "file", id, tenant)
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
    page = await _listed(runtime, Listed("batch", context.tenant, limit, after))
    return _page(page, [_shown(each) for each in page.objects])


@router.get("/v1/batches/{batch_id}", response_model=BatchObject)
async def get_batch(batch_id: str, runtime: CurrentRuntime, context: CurrentContext) -> Response:
    """How far a batch is."""
    storage = storage_of(runtime)
    found = await _found(storage, "batch", batch_id, context.tenant)
    if found.uses and not await runtime.jobs.store.has(batch_id):
        # Its worker ended it just now, or the server that was to add its job died.
        failed = encode(_ended_as_failed(document_of(found), runtime))
        await storage.store.finish(batch_id, _LAST_FENCE, failed, ())
        found = await _found(storage, "batch", batch_id, context.tenant)
    return _json(encode(_shown(found)))


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
    return _json(encode(_shown(found)))


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


async def _found(storage: Storage, kind: Kind, id: str, tenant: str) -> StoredObject:
    try:
        return await storage.store.get(kind, id, tenant)
    except MissingObject as error:
        raise (no_file(id) if kind == "file" else no_batch(id)) from error


async def _listed(runtime: Runtime, query: Listed) -> Page:
    try:
        return await storage_of(runtime).store.page(query)
    except MissingObject as error:
        message = f"after is {error.id[:80]!r}, which is no {query.kind} of yours."
        raise RequestError(message, param="after", code="invalid_value") from error


def _page(page: Page, shown: list[Json]) -> Response:
    data = shown or [msgspec.Raw(each.document) for each in page.objects]
    ids = [each.id for each in page.objects]
    first_id, last_id = (ids[0], ids[-1]) if ids else (None, None)
    body = {
        "object": "list",
        "data": data,
        "first_id": first_id,
        "last_id": last_id,
        "has_more": page.has_more,
    }
    return _json(encode(body))


async def _sweep(storage: Storage) -> None:
    """Remove files whose time is over, now and then."""
    if time.monotonic() - _Sweeping.at_s < _SWEPT_EVERY_S:
        return
    _Sweeping.at_s = time.monotonic()
    await storage.remove(*await storage.store.sweep(NUM_SWEPT))
    await asyncio.to_thread(storage.folder.remove_forgotten)


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")


_PATHS: Final = (
    "/v1/files",
    "/v1/files/{file_id}",
    "/v1/files/{file_id}/content",
    "/v1/batches",
    "/v1/batches/{batch_id}",
    "/v1/batches/{batch_id}/cancel",
)
ROUTES: Final = (
    Routes(
        rows=tuple(PathRow(path, Scope.BATCH, is_counted=True) for path in _PATHS),
        router=router,
        rank=30,
        groups=(RouteGroup("Batches", "OpenAI's files and batches.", 25),),
    ),
)
