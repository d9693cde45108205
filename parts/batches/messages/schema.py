"""What message batches look like to clients."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import Field

from service.api.common.schema import RequestModel, ResponseModel

_MOST: Final = 10_000  # requests


class MessageBatchItem(RequestModel):
    """One request of a batch."""

    custom_id: str = Field(min_length=1, max_length=64)
    params: dict[str, Any]


class MessageBatchRequest(RequestModel):
    """Requests that are to be answered when there is room."""

    requests: list[MessageBatchItem] = Field(min_length=1, max_length=_MOST)


class MessageBatchCounts(ResponseModel):
    """Requests by what became of them; until the batch ends, all are `processing`."""

    processing: int
    succeeded: int
    errored: int
    canceled: int
    expired: int


class MessageBatch(ResponseModel):
    """A batch."""

    id: str
    type: Literal["message_batch"]
    processing_status: Literal["in_progress", "canceling", "ended"]
    request_counts: MessageBatchCounts
    created_at: str
    expires_at: str
    ended_at: str | None
    cancel_initiated_at: str | None
    archived_at: str | None
    results_url: str | None


class MessageBatchList(ResponseModel):
    """A page of batches."""

    data: list[MessageBatch]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedMessageBatch(ResponseModel):
    """That a batch was deleted, with its results."""

    id: str
    type: Literal["message_batch_deleted"] = "message_batch_deleted"
