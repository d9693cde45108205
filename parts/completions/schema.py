"""The body of POST /v1/completions: OpenAI's older API for raw prompts, and its answer."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from service.api.common.guidance_schema import ResponseFormat, StructuredOutputs
from service.api.common.metrics import ShownMetrics
from service.api.common.schema import (
    NVEXT,
    PromptLogprobsCount,
    Refused,
    ResponseModel,
    SamplingFields,
    ShownPromptLogprobs,
    ShownStopReason,
    ShownTier,
    Stop,
    StreamOptions,
    TokenLimit,
    Usage,
    refusing,
)

MAX_CHOICES = 1024

REFUSED: dict[str, str] = {
    "bad_words": "give `logit_bias` -100 to the tokens of these words",
    "nvext": NVEXT,
    "suffix": "gpt-oss was not trained to fill in before a suffix",
    "truncate_prompt_tokens": "shorten the prompt; `POST /tokenize` counts its tokens",
}

TokenIds = Annotated[list[int], Field(min_length=1)]


def _prompt_tag(value: Any) -> str:
    if not isinstance(value, list):
        return "text"
    first = value[0] if value else ""
    return {list: "token_lists", int: "tokens", float: "tokens"}.get(type(first), "texts")


Prompt = Annotated[
    Annotated[str, Tag("text")]
    | Annotated[list[str], Field(min_length=1, max_length=MAX_CHOICES), Tag("texts")]
    | Annotated[TokenIds, Tag("tokens")]
    | Annotated[list[TokenIds], Field(max_length=MAX_CHOICES), Tag("token_lists")],
    Discriminator(_prompt_tag),
]


class CompletionRequest(SamplingFields):
    """A raw prompt, or several, and how to continue it."""

    model: str | None = None
    prompt: Prompt
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = Field(None, ge=1, le=128)
    best_of: int | None = None
    max_tokens: TokenLimit | None = None
    stop: Stop | None = None
    logprobs: int | None = Field(None, ge=0, le=20)
    echo: bool | None = None
    prompt_logprobs: PromptLogprobsCount = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    skip_special_tokens: bool | None = None

    user: str | None = None
    bad_words: Refused = None
    nvext: Refused = None
    suffix: Refused = None
    truncate_prompt_tokens: Refused = None

    _refuse = refusing(REFUSED)


class CompletionLogprobs(ResponseModel):
    """Four lists with an entry for each visible token; with `echo` for each of the prompt and the
    answer, of which the first has no log-probability."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(ResponseModel):
    """One of the texts, and why it ended."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    prompt_logprobs: ShownPromptLogprobs = None
    finish_reason: Literal["stop", "length"]
    stop_reason: ShownStopReason = None


class Completion(ResponseModel):
    """An answer, or an event of one that is streamed."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    metrics: ShownMetrics = None
    service_tier: ShownTier = None


class RenderedTokens(ResponseModel):
    """Exactly what the model would read for one prompt."""

    token_ids: list[int]
