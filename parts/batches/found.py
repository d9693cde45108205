"""Objects for the routes: found, listed, and as answers."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import Response

from parts.batches.store.base import Kind, MissingObject, Page, Query, StoredObject
from parts.batches.stored import Json, Storage, encode, no_batch, no_file, storage_of
from service.errors import RequestError
from service.runtime import Runtime


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
