"""Where the files and batches of a runtime are; found, listed, and as answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from fastapi import Response

from parts.batches.files.folder import FilesFolder
from parts.batches.store.base import (
    Kind,
    MissingObject,
    ObjectStore,
    Page,
    Query,
    StorageBounds,
    StorageFull,
    StoredObject,
)
from parts.batches.store.redis import RedisObjects
from parts.batches.store.sqlite import SqliteObjects
from service.errors import UNAVAILABLE, RequestError
from service.runtime import Runtime
from service.store.sqlite import SqliteDatabase

Json = dict[str, Any]

encode: Final[Callable[[Any], bytes]] = msgspec.json.encode
_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode


@dataclass(frozen=True, slots=True)
class Storage:
    """What is known of files and batches, and what the files hold."""

    store: ObjectStore
    folder: FilesFolder
    bounds: StorageBounds

    async def remove(self, *contents: str) -> None:
        await asyncio.to_thread(self.folder.remove, *contents)


def storage_of(runtime: Runtime) -> Storage:
    """The storage of this runtime: it may be made again for each use."""
    folder, bounds = runtime.of(FilesFolder), runtime.of(StorageBounds) or StorageBounds()
    if folder is None:  # a service that was put together without one
        raise RequestError("This server keeps no files.", status=501, type="server_error")
    database = runtime.database
    if isinstance(database, SqliteDatabase):
        return Storage(SqliteObjects(database, bounds), folder, bounds)
    return Storage(RedisObjects(database, bounds), folder, bounds)


def document_of(found: StoredObject) -> Json:
    return _decode(found.document)


def file_object(
    id: str, filename: str, purpose: str, num_bytes: int, created_at: int, lasts_s: int
) -> Json:
    """A file as clients see it."""
    return {
        "id": id,
        "object": "file",
        "bytes": num_bytes,
        "created_at": created_at,
        "expires_at": created_at + lasts_s,
        "filename": filename,
        "purpose": purpose,
        "status": "processed",
    }


def no_file(id: str) -> RequestError:
    return RequestError(
        f"There is no file {id[:80]!r}; GET /v1/files lists them.",
        status=404,
        code="file_not_found",
        param="file_id",
    )


def no_batch(id: str) -> RequestError:
    path = "/v1/messages" if id.startswith("msgbatch_") else "/v1"
    return RequestError(
        f"There is no batch {id[:80]!r}; GET {path}/batches lists them.",
        status=404,
        code="batch_not_found",
        param="batch_id",
    )


def storage_full(error: StorageFull, bounds: StorageBounds) -> RequestError:
    whose, most = "all files", bounds.max_bytes
    if error.is_of_tenant:
        whose, most = "your files", bounds.max_tenant_bytes
    return RequestError(
        f"There is no room for it: {whose} may have {most} bytes (NIM_FILES_MAX_BYTES), or the "
        "disk is full. Delete files with DELETE /v1/files/{file_id}, and try again.",
        status=503,
        type=UNAVAILABLE,
        code="storage_full",
        headers={"Retry-After": "60"},
    )


async def found_in(storage: Storage, kind: Kind, id: str, tenant: str) -> StoredObject:
    try:
        return await storage.store.get(kind, id, tenant)
    except MissingObject as error:
        raise (no_file(id) if kind == "file" else no_batch(id)) from error


async def listed(runtime: Runtime, query: Query) -> Page:
    try:
        return await storage_of(runtime).store.page(query)
    except MissingObject as error:
        message = f"after is {error.id[:80]!r}, which is no {query.kind} of yours."
        raise RequestError(message, param="after", code="invalid_value") from error


def page_of(page: Page, shown: list[Json]) -> Response:
    data: list[Any] = shown or [msgspec.Raw(each.document) for each in page.objects]
    ids = [each.id for each in page.objects]
    first_id, last_id = (ids[0], ids[-1]) if ids else (None, None)
    body = {
        "object": "list",
        "data": data,
        "first_id": first_id,
        "last_id": last_id,
        "has_more": page.has_more,
    }
    return json_of(encode(body))


def json_of(body: bytes) -> Response:
    return Response(body, media_type="application/json")
