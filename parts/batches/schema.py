"""What files and batches look like to clients."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from parts.batches.files.folder import MAX_AGE_S
from service.api.common.schema import RequestModel, ResponseModel

MIN_AGE_S = 3600

_Key = Annotated[str, Field(max_length=64)]
_Value = Annotated[str, Field(max_length=512)]


class ExpiresAfter(RequestModel):
    """When a file is deleted."""

    anchor: Literal["created_at"]
    seconds: int = Field(ge=MIN_AGE_S, le=MAX_AGE_S)


class BatchRequest(RequestModel):
    """A batch that is to be run."""

    input_file_id: str = Field(max_length=128)
    endpoint: Literal["/v1/chat/completions", "/v1/responses", "/v1/completions", "/v1/decisions"]
    completion_window: Literal["24h"]
    metadata: dict[_Key, _Value] | None = Field(None, max_length=16)
    output_expires_after: ExpiresAfter | None = None


class FileObject(ResponseModel):
    """An uploaded file, or the results of a batch."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: Literal["batch", "batch_output"]
    status: Literal["processed"]


class DeletedFile(ResponseModel):
    """That a file was deleted."""

    id: str
    object: Literal["file"] = "file"
    deleted: bool = True


class FileList(ResponseModel):
    """A page of files."""

    object: Literal["list"]
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class BatchFault(ResponseModel):
    """What is wrong with a line, or why the batch ended."""

    code: str | None
    message: str
    line: int | None
    param: str | None


class BatchFaults(ResponseModel):
    """The first faults of a batch."""

    object: Literal["list"]
    data: list[BatchFault]


class RequestCounts(ResponseModel):
    """How many requests a batch has, and how many have ended."""

    total: int
    completed: int
    failed: int


class BatchObject(ResponseModel):
    """A batch."""

    id: str
    object: Literal["batch"]
    endpoint: str
    model: str
    errors: BatchFaults | None
    input_file_id: str
    completion_window: str
    status: Literal[
        "validating",
        "failed",
        "in_progress",
        "finalizing",
        "completed",
        "expired",
        "cancelling",
        "cancelled",
    ]
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    usage: dict[str, Any]
    metadata: dict[str, str] | None


class BatchList(ResponseModel):
    """A page of batches."""

    object: Literal["list"]
    data: list[BatchObject]
    first_id: str | None
    last_id: str | None
    has_more: bool
