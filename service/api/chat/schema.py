"""The body of POST /v1/chat/completions.

Every field of OpenAI's published schema is one of: supported, accepted without effect
(NO_EFFECT), or refused with the reason (REFUSED). Anything else is an unknown field.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from service.api.chat.message_schema import ChatMessage
from service.api.common.custom_tools import NestedInputFormat
from service.api.common.guidance import (
    Choice,
    FunctionName,
    ResponseFormat,
    StructuredOutputs,
)
from service.api.common.sampling import NVEXT, SamplingFields
from service.api.common.schema import OfferedModel, RequestModel, Stop, StreamOptions, TokenLimit

NO_EFFECT: dict[str, str] = {
    "user": "the server keeps no record of end users",
    "metadata": "nothing is stored",
    "store": "nothing is stored",
    "service_tier": "there is one tier",
    "safety_identifier": "the server keeps no record of end users",
    "prompt_cache_key": "shared prefixes are found without it",
    "prompt_cache_retention": "cached prefixes stay until their room is needed",
    "prompt_cache_options": "shared prefixes are always cached",
}

REFUSED: dict[str, str] = {
    "audio": "gpt-oss has no audio output",
    "function_call": "the legacy form is not supported; use `tool_choice`",
    "functions": "the legacy form is not supported; use `tools`",
    "moderation": "this server does not moderate; run a moderation model beside it",
    "nvext": NVEXT,
    "prediction": "predicted outputs are not supported",
}

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class FunctionDefinition(OfferedModel):
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = Field(None, description="A JSON Schema.")
    strict: bool | None = Field(
        None, description="`true`: the arguments follow the schema, whatever tool_choice is."
    )


class FunctionTool(OfferedModel):
    type: Literal["function"]
    function: FunctionDefinition


class CustomDefinition(OfferedModel):
    name: FunctionName
    description: str | None = None
    format: NestedInputFormat | None = Field(None, description="What the input must be.")


class CustomTool(OfferedModel):
    """A tool that the client runs on free text."""

    type: Literal["custom"]
    custom: CustomDefinition


class BuiltinTool(RequestModel):
    """Extension: a tool that the server runs, where the operator connected it."""

    model_config = ConfigDict(extra="allow")

    type: Literal["web_search", "web_search_preview", "code_interpreter"]


Tool = Annotated[FunctionTool | CustomTool | BuiltinTool, Field(discriminator="type")]


class ReasoningOptions(RequestModel):
    """OpenRouter's name."""

    effort: Effort | None = None


class TemplateOptions(RequestModel):
    """What other servers pass on to gpt-oss's chat template."""

    reasoning_effort: Effort | None = None


class ChatRequest(SamplingFields):
    """A conversation, and how to answer it."""

    model: str
    messages: list[ChatMessage] = Field(min_length=1)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = Field(None, ge=1, le=128)
    max_completion_tokens: TokenLimit | None = None
    max_tokens: TokenLimit | None = Field(None, description="Older name, the same meaning.")
    stop: Stop | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    reasoning_effort: Effort | None = None
    reasoning: ReasoningOptions | None = Field(None, description="Extension: `effort`.")
    chat_template_kwargs: TemplateOptions | None = Field(
        None, description="Extension: `reasoning_effort`."
    )
    include_reasoning: bool | None = Field(
        None, description="Extension; false leaves reasoning out."
    )
    tools: list[Tool] | None = Field(None, max_length=128)
    tool_choice: Choice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = Field(None, description="Extension.")
    thinking_token_budget: int | None = Field(
        None, ge=0, lt=1 << 31, description="Extension: most tokens of reasoning."
    )
    web_search_options: dict[str, Any] | None = Field(
        None, description="Offers the built-in tool `browser`; what it holds has no effect."
    )
    modalities: list[str] | None = Field(None, description='`["text"]`.')
    verbosity: str | None = Field(None, description="`medium`.")

    user: str | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None

    audio: Any = None
    function_call: Any = None
    functions: Any = None
    moderation: Any = None
    nvext: Any = None
    prediction: Any = None

    @field_validator(*REFUSED, mode="before")
    @classmethod
    def _refuse(cls, value: Any, info: ValidationInfo) -> Any:
        if value is not None:
            reason = REFUSED[str(info.field_name)]
            raise PydanticCustomError("unsupported_field", "{reason}", {"reason": reason})
        return value

    @field_validator("modalities")
    @classmethod
    def _check_modalities(cls, value: list[str] | None) -> list[str] | None:
        if value not in (None, ["text"]):
            raise PydanticCustomError("unsupported_value", "gpt-oss writes text only")
        return value

    @field_validator("verbosity")
    @classmethod
    def _check_verbosity(cls, value: str | None) -> str | None:
        if value not in (None, "medium"):
            raise PydanticCustomError(
                "unsupported_value",
                "gpt-oss has no verbosity control; ask for the length in the instructions",
            )
        return value
