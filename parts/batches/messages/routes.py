"""Anthropic's message batches: the same batches, whose requests come in one body.

Each has a file of its requests and is seen by the routes of OpenAI's API too.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Annotated, Final

from fastapi import Query, Request, Response
from starlette.responses import StreamingResponse

from auth.base import Scope
from parts.batches.begun import begin, cancelled, check_may_begin, new_batch, present
from parts.batches.files.folder import MAX_AGE_S, append
from parts.batches.messages.results import results_in, shown
from parts.batches.messages.schema import (
    DeletedMessageBatch,
    MessageBatch,
    MessageBatchItem,
    MessageBatchList,
    MessageBatchRequest,
)
from parts.batches.store.base import MissingObject, ObjectInUse, StorageFull, StoredObject
from parts.batches.store.base import Query as Listed
from parts.batches.stored import (
    Storage,
    document_of,
    encode,
    file_object,
    json_of,
    listed,
    storage_full,
    storage_of,
)
from service.api.common.operations import Responses, json_router
from service.errors import RequestError
from service.http.paths import ANTHROPIC, PathRow, Routes
from service.request import RequestContext
from service.runtime import CurrentContext, CurrentRuntime, Runtime
from service.work import by_number, rest

PURPOSE: Final = "messages"  # of such a batch in the store
_ENDPOINT: Final = "/v1/messages"
_RESULTS: Final[Responses] = {
    200: {"content": {"application/x-jsonl": {"schema": {"type": "string"}}}}
}
router = json_router("Batches")


@router.post("/v1/messages/batches", response_model=MessageBatch)
async def create_message_batch(
    body: MessageBatchRequest, request: Request, runtime: CurrentRuntime, context: CurrentContext
) -> Response:
    """Answer many requests when there is room for them, within a day."""
    check_may_begin(request.app.paths, _ENDPOINT, runtime, context)
    lines = await by_number(lambda: _lines(body.requests), len(body.requests))
    storage, number = storage_of(runtime), runtime.new_id()
    id, file_id = f"msgbatch_{number}", f"file-{number}"
    await _store_input(storage, file_id, lines, runtime, context)
    batch = new_batch(runtime, context.tenant, id, _ENDPOINT, file_id, purpose=PURPOSE)
    document = document_of(batch)
    document["request_counts"]["total"] = len(lines)
    batch = replace(batch, document=encode(document))
    try:
        await begin(runtime, storage, batch, context)
    except RequestError:
        await storage.remove((await storage.store.delete("file", file_id, context.tenant)).content)
        raise
    return json_of(encode(shown(batch)))


def _lines(requests: list[MessageBatchItem]) -> list[bytes]:
    """The lines of the input file; raises RequestError for what no batch can have."""
    lines, seen = [], set[str]()
    for number, each in enumerate(requests):
        rest()
        param = f"requests.{number}"
        if each.custom_id in seen:
            message = f"custom_id {each.custom_id!r} is that of an earlier request."
            raise RequestError(message, param=f"{param}.custom_id", code="duplicate_custom_id")
        if each.params.get("stream"):
            message = "Batches do not stream; leave out stream."
            raise RequestError(message, param=f"{param}.params.stream", code="unsupported_value")
        seen.add(each.custom_id)
        line = {"custom_id": each.custom_id, "method": "POST", "url": _ENDPOINT}
        lines.append(encode(line | {"body": each.params}) + b"\n")
    return lines


async def _store_input(
    storage: Storage, id: str, lines: list[bytes], runtime: Runtime, context: RequestContext
) -> None:
    name, size = f"{id}.jsonl", sum(map(len, lines))
    document = file_object(id, name, "batch", size, int(runtime.clock()), MAX_AGE_S)
    file = StoredObject(
        id,
        "file",
        context.tenant,
        encode(document),
        MAX_AGE_S,
        purpose="batch",
        content=name,
        num_bytes=size,
    )
    is_kept = False
    try:
        if await storage.store.room(context.tenant) < size:
            raise StorageFull(is_of_tenant=True)
        await asyncio.to_thread(_write, storage, name, lines)
        await storage.store.put(file)
        is_kept = True
    except StorageFull as error:
        raise storage_full(error, storage.bounds) from error
    finally:
        if not is_kept:
            await storage.remove(name)


def _write(storage: Storage, name: str, lines: list[bytes]) -> None:
    with storage.folder.create(name) as file:
        append(file, lines)
        storage.folder.complete(file)


@router.get("/v1/messages/batches", response_model=MessageBatchList)
async def list_message_batches(
    runtime: CurrentRuntime,
    context: CurrentContext,
    after_id: str | None = None,
    before_id: str | None = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 20,
) -> Response:
    """The caller's batches, the newest first, page by page."""
    after, is_ascending = (before_id, True) if before_id is not None else (after_id, False)
    query = Listed("batch", context.tenant, limit, after, is_ascending, PURPOSE)
    page = await listed(runtime, query)
    data = [shown(each) for each in page.objects]
    data = data[::-1] if is_ascending else data
    first_id, last_id = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    body = {"data": data, "first_id": first_id, "last_id": last_id, "has_more": page.has_more}
    return json_of(encode(body))


@router.get("/v1/messages/batches/{batch_id}", response_model=MessageBatch)
async def get_message_batch(
    batch_id: str, runtime: CurrentRuntime, context: CurrentContext
) -> Response:
    """How far a batch is."""
    found = await present(runtime, storage_of(runtime), batch_id, context.tenant)
    return json_of(encode(shown(found)))


@router.post("/v1/messages/batches/{batch_id}/cancel", response_model=MessageBatch)
async def cancel_message_batch(
    batch_id: str, runtime: CurrentRuntime, context: CurrentContext
) -> Response:
    """Have a batch end within seconds; what is done is kept."""
    found = await cancelled(runtime, storage_of(runtime), batch_id, context.tenant)
    return json_of(encode(shown(found)))


@router.delete("/v1/messages/batches/{batch_id}")
async def delete_message_batch(
    batch_id: str, runtime: CurrentRuntime, context: CurrentContext
) -> DeletedMessageBatch:
    """Delete a batch that has ended, its requests and its results."""
    storage, tenant = storage_of(runtime), context.tenant
    found = await present(runtime, storage, batch_id, tenant)
    if found.uses:
        message = f"{batch_id} has not ended; cancel it, and delete it when it has."
        raise RequestError(message, status=409, param="batch_id", code="batch_in_progress")
    document = document_of(found)
    for name in ("input_file_id", "output_file_id", "error_file_id"):
        try:
            gone = await storage.store.delete("file", document[name] or "", tenant)
            await storage.remove(gone.content)
        except (MissingObject, ObjectInUse):
            continue  # deleted before, or read by another batch
    await storage.store.delete("batch", batch_id, tenant)
    return DeletedMessageBatch(id=batch_id)


@router.get("/v1/messages/batches/{batch_id}/results", response_class=Response, responses=_RESULTS)
async def get_message_batch_results(
    batch_id: str, runtime: CurrentRuntime, context: CurrentContext
) -> Response:
    """A line for each request, in any order."""
    storage, tenant = storage_of(runtime), context.tenant
    found = await present(runtime, storage, batch_id, tenant)
    if found.uses:
        message = f"{batch_id} has not ended; its results come then."
        raise RequestError(message, status=404, param="batch_id", code="no_results_yet")
    paths, document = [], document_of(found)
    for name in ("output_file_id", "error_file_id"):
        if document[name] is not None:
            try:
                file = await storage.store.get("file", document[name], tenant)
            except MissingObject as error:
                message = f"The results of {batch_id} have been deleted."
                raise RequestError(message, status=404, code="no_results") from error
            paths.append(storage.folder.of(file.content))
    return StreamingResponse(results_in(paths), media_type="application/x-jsonl")


ROUTES: Final = Routes(
    rows=tuple(
        PathRow(path, Scope.BATCH, is_counted=True, dialect=ANTHROPIC)
        for path in (
            "/v1/messages/batches",
            "/v1/messages/batches/{batch_id}",
            "/v1/messages/batches/{batch_id}/cancel",
            "/v1/messages/batches/{batch_id}/results",
        )
    ),
    router=router,
    rank=32,
)
