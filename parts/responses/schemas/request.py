"""The body of POST /v1/responses.

Every field of OpenAI's published schema is one of: supported, accepted without effect
(texts.yaml), or refused with the reason (REFUSED). Anything else is an unknown field.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from parts.responses.schemas.compaction import ContextEdits
from parts.responses.schemas.configuration import TextFormat
from parts.responses.schemas.items import InputItem
from parts.responses.schemas.tools import Tool, ToolChoice
from service.api.common.foreign import mark_results
from service.api.common.schema import (
    Refused,
    RequestModel,
    SamplingFields,
    Stop,
    TokenLimit,
    refusing,
)
from service.conversation import Effort

REFUSED: dict[str, str] = {
    "access_programs": "this server has no access programs",
    "image": "gpt-oss reads and writes text only",
    "moderation": "this server does not moderate; run a moderation model beside it",
    "prompt": "prompt templates are not kept; send `instructions` and `input`",
}

INCLUDABLE = Literal[
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
]


class TextConfig(RequestModel):
    """What the answer's text looks like."""

    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = Field(
        None, description="`low` and `high` are a line of the instructions."
    )


class Reasoning(RequestModel):
    """How much the model thinks."""

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = Field(
        None, description="Accepted without effect: reasoning is given in full."
    )
    generate_summary: Literal["auto", "concise", "detailed"] | None = Field(
        None, description="The older name of `summary`."
    )
    context: Literal["auto", "current_turn", "all_turns"] | None = Field(
        None,
        description="Accepted without effect: reasoning is kept within a tool loop, as the model "
        "was trained.",
    )
    mode: Literal["standard"] | None = Field(None, description="Accepted without effect.")


class BackgroundOptions(RequestModel):
    """How soon a background response is wanted: all of them run at the lowest priority."""

    completion_window: Literal["soonest", "2h", "8h"] | None = None
    continuation_id: str | None = Field(
        None, max_length=256, description="Accepted without effect."
    )


class ResponseStreamOptions(RequestModel):
    """What a stream has beside the response."""

    include_obfuscation: bool | None = Field(None, description="Accepted without effect.")


MetadataKey = Annotated[str, Field(max_length=64)]
MetadataValue = Annotated[str, Field(max_length=512)]


def _input_tag(value: Any) -> str:
    return "items" if isinstance(value, list) else "string"


def _mark(items: Any) -> Any:
    return mark_results(items, lambda item: str(item.get("type")).endswith("_output"))


Input = Annotated[
    Annotated[str, Tag("string")] | Annotated[list[InputItem], Field(min_length=1), Tag("items")],
    Discriminator(_input_tag),
    BeforeValidator(_mark),
]


class ConversationReference(RequestModel):
    """The conversation that is continued, and gets the request's input and its answer."""

    id: str = Field(min_length=1, max_length=256)


def _reference_tag(value: Any) -> str:
    return "id" if isinstance(value, str) else "object"


ConversationField = Annotated[
    Annotated[str, Field(min_length=1, max_length=256), Tag("id")]
    | Annotated[ConversationReference, Tag("object")],
    Discriminator(_reference_tag),
]


def _without_default(schema: dict[str, Any]) -> None:
    """Leave the default out of the document: openapi-generator cannot write that of a union."""
    del schema["default"]


class ContextRequest(RequestModel):
    """What the model reads: the body of POST /v1/responses/input_tokens."""

    model: str | None = None
    input: Input = Field("", json_schema_extra=_without_default)
    instructions: str | None = None
    previous_response_id: str | None = Field(None, min_length=1, max_length=256)
    conversation: ConversationField | None = None
    reasoning: Reasoning | None = None
    text: TextConfig | None = None
    tools: list[Tool] | None = Field(None, max_length=128)
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    truncation: Literal["auto", "disabled"] | None = None

    @property
    def conversation_id(self) -> str | None:
        """The conversation to continue, as a string or an object says it."""
        given = self.conversation
        return given.id if isinstance(given, ConversationReference) else given


class CompactRequest(ContextRequest):
    """What to compact: the body of POST /v1/responses/compact."""

    service_tier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    client_metadata: dict[str, Any] | None = None

    image: Refused = None

    _refuse_image = refusing({"image": REFUSED["image"]})


class ResponseRequest(ContextRequest, SamplingFields):
    """What to answer, and how."""

    input: Input
    store: bool | None = None
    background: bool | None = None
    background_options: BackgroundOptions | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    max_output_tokens: TokenLimit | None = None
    stop: Stop | None = Field(None, description="Extension.")
    thinking_token_budget: int | None = Field(
        None, ge=0, lt=1 << 31, description="Extension: maximum reasoning tokens."
    )
    top_logprobs: int | None = Field(None, ge=0, le=20)
    include: list[INCLUDABLE] | None = None
    context_management: ContextEdits | None = None
    max_tool_calls: int | None = Field(None, ge=1)
    metadata: dict[MetadataKey, MetadataValue] | None = Field(None, max_length=16)
    timings_per_token: bool | None = None
    return_progress: bool | None = None

    client_metadata: dict[str, Any] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None

    access_programs: Refused = None
    image: Refused = None
    moderation: Refused = None
    prompt: Refused = None

    _refuse = refusing(REFUSED)
