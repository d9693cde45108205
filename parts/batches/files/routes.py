"""The routes of files."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any, Final, Literal

from fastapi import Query, Request, Response
from starlette.responses import FileResponse

from parts.batches.files.folder import MAX_AGE_S
from parts.batches.files.upload import FileUpload, receive_upload
from parts.batches.lines import MAX_LINES
from parts.batches.schema import MIN_AGE_S, DeletedFile, FileList, FileObject
from parts.batches.store.base import (
    NUM_SWEPT,
    MissingObject,
    ObjectInUse,
    StorageFull,
    StoredObject,
)
from parts.batches.store.base import Query as Listed
from parts.batches.stored import (
    Storage,
    document_of,
    encode,
    file_object,
    found_in,
    json_of,
    listed,
    no_file,
    page_of,
    storage_full,
    storage_of,
)
from service.api.common.operations import json_router
from service.errors import RequestError
from service.runtime import CurrentContext, CurrentRuntime, Runtime

_SWEPT_EVERY_S: Final = 60.0
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
router = json_router("Batches")


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
    return json_of(file.document)


def _file_of(id: str, upload: FileUpload, runtime: Runtime, tenant: str) -> StoredObject:
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


def _lasts_s(upload: FileUpload) -> int:
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
    order: Literal["asc", "desc"] = "desc",
    purpose: str | None = None,
) -> Response:
    """The caller's files, page by page."""
    query = Listed("file", context.tenant, limit, after, order == "asc", purpose)
    return page_of(await listed(runtime, query), [])


@router.get("/v1/files/{file_id}", response_model=FileObject)
async def get_file(file_id: str, runtime: CurrentRuntime, context: CurrentContext) -> Response:
    """A file, without what it holds."""
    found = await found_in(storage_of(runtime), "file", file_id, context.tenant)
    return json_of(found.document)


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
    found = await found_in(storage, "file", file_id, context.tenant)
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


async def _sweep(storage: Storage) -> None:
    """Remove files whose time is over, now and then."""
    now_s, folder = time.monotonic(), storage.folder
    if now_s - folder.swept_at_s < _SWEPT_EVERY_S:
        return
    folder.swept_at_s = now_s
    await storage.remove(*await storage.store.sweep(NUM_SWEPT))
    await asyncio.to_thread(folder.remove_forgotten)
