"""Compaction in the requests and answers of /v1/responses."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from parts.responses.schemas.tool_items import ItemId
from service.api.common.schema import Replayed, RequestModel, ResponseModel

MAX_SEALED_CHARS = 1 << 20


class CompactionItem(Replayed):
    """What became of the conversation before it; `encrypted_content` is this server's."""

    type: Literal["compaction"]
    encrypted_content: str = Field(min_length=1, max_length=MAX_SEALED_CHARS)
    id: ItemId = None
    created_by: str | None = Field(None, description="Accepted without effect.")


class CompactionTrigger(Replayed):
    """The last item: the answer is one `compaction` item."""

    type: Literal["compaction_trigger"]
    id: ItemId = None


class ContextEdit(RequestModel):
    """When the conversation is compacted before it is answered."""

    type: Literal["compaction"]
    compact_threshold: Annotated[int, Field(ge=1, lt=1 << 31)] | None = Field(
        None, description="Tokens of the prompt; default: three quarters of the context."
    )


ContextEdits = Annotated[list[ContextEdit], Field(min_length=1, max_length=1)]


class Compaction(ResponseModel):
    """A summary of the conversation before it, encrypted."""

    id: str
    type: Literal["compaction"]
    encrypted_content: str


class KeptMessage(ResponseModel):
    """A message of the user, as it was."""

    id: str
    type: Literal["message"]
    status: Literal["completed"]
    role: Literal["user"]
    content: list[dict[str, Any]]
