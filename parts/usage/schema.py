"""What usage looks like to clients."""

from __future__ import annotations

from typing import Literal

from service.api.common.schema import ResponseModel


class UsageSum(ResponseModel):
    """What was used; of key, tenant, model and day those that were asked for."""

    object: Literal["usage"]
    key: str | None = None
    tenant: str | None = None
    model: str | None = None
    day: str | None = None
    requests: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    gpu_seconds: float


class UsageList(ResponseModel):
    """Usage from the first to the last day, both included."""

    object: Literal["list"] = "list"
    start: str
    end: str
    data: list[UsageSum]


class CompletionsUsage(ResponseModel):
    """One sum of a bucket, as OpenAI's administrators read it."""

    object: Literal["organization.usage.completions.result"]
    input_tokens: int
    input_cached_tokens: int
    output_tokens: int
    num_model_requests: int
    project_id: str | None
    api_key_id: str | None
    model: str | None


class UsageBucket(ResponseModel):
    """A day."""

    object: Literal["bucket"]
    start_time: int
    end_time: int
    results: list[CompletionsUsage]


class UsagePage(ResponseModel):
    """Some days; `next_page` is the cursor of the next ones."""

    object: Literal["page"]
    data: list[UsageBucket]
    has_more: bool
    next_page: str | None
