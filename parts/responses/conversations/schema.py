"""What the routes under /v1/conversations take and give."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from parts.responses.schemas.items import InputItem
from parts.responses.schemas.request import MetadataKey, MetadataValue
from service.api.common.schema import RequestModel, ResponseModel

Metadata = Annotated[dict[MetadataKey, MetadataValue], Field(max_length=16)]
FewItems = Annotated[list[InputItem], Field(max_length=20)]


class ConversationRequest(RequestModel):
    """A new conversation."""

    items: FewItems | None = None
    metadata: Metadata | None = None


class ConversationUpdate(RequestModel):
    """New metadata, in place of all that there was."""

    metadata: Metadata


class AddedItems(RequestModel):
    """Items for the end of a conversation."""

    items: Annotated[FewItems, Field(min_length=1)]


class ConversationObject(ResponseModel):
    """A conversation; its items have a list of their own."""

    id: str
    object: Literal["conversation"]
    created_at: int
    metadata: dict[str, str]


class ConversationItems(ResponseModel):
    """A page of a conversation's items."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedConversation(ResponseModel):
    """A conversation that is gone."""

    id: str
    object: Literal["conversation.deleted"] = "conversation.deleted"
    deleted: bool = True
