"""The routes under /v1/conversations."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from fastapi import Query, Response

from auth.base import Scope
from parts.responses.conversations import log
from parts.responses.conversations.schema import (
    AddedItems,
    ConversationItems,
    ConversationObject,
    ConversationRequest,
    ConversationUpdate,
    DeletedConversation,
)
from parts.responses.items import listed, outputs_of
from parts.responses.retrieval import page
from parts.responses.schemas.items import InputItem
from parts.responses.schemas.request import INCLUDABLE
from service.api.common.foreign import note_unread
from service.api.common.operations import json_router
from service.http.paths import PathRow, RouteGroup, Routes
from service.request import RequestContext
from service.runtime import CurrentContext, CurrentRuntime, Runtime

router = json_router("Conversations")

Include = Annotated[list[INCLUDABLE] | None, Query(alias="include[]")]


@router.post("/v1/conversations", response_model=ConversationObject)
async def create_conversation(
    body: ConversationRequest, runtime: CurrentRuntime, context: CurrentContext
) -> Response:
    """Begin a conversation, which responses continue and are added to."""
    runtime.lifecycle.check_accepting()
    items = _listed(body.items or [], runtime, context)
    made = await log.create(runtime, context.tenant, items, body.metadata or {})
    return _json(made.shown())


@router.get("/v1/conversations/{conversation_id}", response_model=ConversationObject)
async def get_conversation(
    conversation_id: str, runtime: CurrentRuntime, context: CurrentContext
) -> Response:
    """A conversation, without its items."""
    return _json((await log.read(runtime, conversation_id, context.tenant)).shown())


@router.post("/v1/conversations/{conversation_id}", response_model=ConversationObject)
async def update_conversation(
    conversation_id: str,
    body: ConversationUpdate,
    runtime: CurrentRuntime,
    context: CurrentContext,
) -> Response:
    """Replace the metadata."""
    kept = await log.read(runtime, conversation_id, context.tenant)
    await log.change(runtime, kept, metadata=body.metadata)
    return _json({**kept.shown(), "metadata": body.metadata})


@router.delete("/v1/conversations/{conversation_id}")
async def delete_conversation(
    conversation_id: str, runtime: CurrentRuntime, context: CurrentContext
) -> DeletedConversation:
    """Forget a conversation with its items; responses that continued it stay."""
    await log.delete(runtime, conversation_id, context.tenant)
    return DeletedConversation(id=conversation_id)


@router.get("/v1/conversations/{conversation_id}/items", response_model=ConversationItems)
async def list_items(
    conversation_id: str,
    runtime: CurrentRuntime,
    context: CurrentContext,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Literal["asc", "desc"] = "desc",
    include: Include = None,
) -> Response:
    """The items, page by page."""
    kept = await log.read(runtime, conversation_id, context.tenant)
    return _json(page([*kept.items.values()], after=after, limit=limit, order=order))


@router.post("/v1/conversations/{conversation_id}/items", response_model=ConversationItems)
async def add_items(
    conversation_id: str,
    body: AddedItems,
    runtime: CurrentRuntime,
    context: CurrentContext,
    include: Include = None,
) -> Response:
    """Add items to the end."""
    kept = await log.read(runtime, conversation_id, context.tenant)
    items = _listed(body.items, runtime, context)
    await log.change(runtime, kept, items=items)
    added = [msgspec.Raw(msgspec.json.encode(item)) for item in items]
    return _json(page(added, after=None, limit=len(added), order="asc"))


@router.get("/v1/conversations/{conversation_id}/items/{item_id}")
async def get_item(
    conversation_id: str,
    item_id: str,
    runtime: CurrentRuntime,
    context: CurrentContext,
    include: Include = None,
) -> dict[str, Any]:
    """One item."""
    kept = await log.read(runtime, conversation_id, context.tenant)
    item: dict[str, Any] = msgspec.json.decode(kept.item(item_id))
    return item


@router.delete(
    "/v1/conversations/{conversation_id}/items/{item_id}", response_model=ConversationObject
)
async def delete_item(
    conversation_id: str, item_id: str, runtime: CurrentRuntime, context: CurrentContext
) -> Response:
    """Take one item out; the conversation is the answer."""
    kept = await log.read(runtime, conversation_id, context.tenant)
    kept.item(item_id)
    await log.change(runtime, kept, removed=item_id)
    return _json(kept.shown())


def _listed(
    items: list[InputItem], runtime: Runtime, context: RequestContext
) -> list[dict[str, Any]]:
    note_unread(context, outputs_of(items))
    return listed(items, f"{log.PREFIX}{runtime.new_id()}", "items")


def _json(body: dict[str, Any]) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")


_ONE: Final = "/v1/conversations/{conversation_id}"
_PATHS: Final = ("/v1/conversations", _ONE, f"{_ONE}/items", f"{_ONE}/items/{{item_id}}")
CONVERSATION_ROUTES: Final = Routes(
    rows=tuple(PathRow(path, Scope.INFERENCE, is_counted=True) for path in _PATHS),
    router=router,
    rank=11,
    groups=(RouteGroup("Conversations", "Conversations that responses are added to.", 11),),
)
