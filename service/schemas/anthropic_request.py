"""The bodies of POST /v1/messages and /v1/messages/count_tokens.

Every field of Anthropic's published schema is one of: supported, accepted without effect
(NO_EFFECT), or refused with the reason (REFUSED). Anything else is an unknown field.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from service.schemas.anthropic_blocks import TOOL_NAME, Cached, TextContent, Turn
from service.schemas.chat import StopString, TokenLimit
from service.schemas.common import RequestModel

NO_EFFECT: dict[str, str] = {
    "cache_control": "shared prefixes are found without it",
    "diagnostics": "cached prefixes leave no record to compare with",
    "metadata": "the server keeps no record of end users",
    "service_tier": "there is one tier",
}
REFUSED: dict[str, str] = {
    "billing_policy": "the server bills nobody",
    "compaction": "the server summarizes no history; ask for a summary in a message",
    "container": "the server runs no code",
    "context_management": "the server edits no history; send the messages that shall count",
    "fallback_credit_token": "the server bills nobody",
    "fallbacks": "there is one model",
    "inference_geo": "the server runs where it runs",
    "mcp_servers": "the operator connects tools, not a request; connect yours in the client",
    "thread": "the server holds no conversations; send all messages",
}
_TOOL_REFUSED: dict[str, str] = {
    "defer_loading": "every tool is shown to the model at once",
}


def _refusal(reason: str) -> PydanticCustomError:
    return PydanticCustomError("unsupported_field", "{reason}", {"reason": reason})


class CustomTool(RequestModel):
    """A function of the client's."""

    type: Literal["custom"] | None = None
    name: str = Field(pattern=TOOL_NAME)
    description: str | None = None
    input_schema: dict[str, Any] = Field(description="A JSON Schema.")
    strict: bool | None = None
    cache_control: Cached = None
    eager_input_streaming: bool | None = Field(None, description="Accepted: inputs do stream.")
    input_examples: list[dict[str, Any]] | None = Field(
        None, description="Accepted without effect."
    )
    allowed_callers: list[str] | None = Field(None, description='`["direct"]`.')
    defer_loading: bool | None = Field(None, description="`true` is refused.")

    @field_validator("type", mode="before")
    @classmethod
    def _check_type(cls, value: Any) -> Any:
        if isinstance(value, str) and value != "custom":
            message = "only tools of type 'custom' are supported: define yours by an input_schema"
            raise PydanticCustomError("unsupported_value", message)
        return value

    @field_validator("defer_loading")
    @classmethod
    def _check_loading(cls, value: bool | None) -> bool | None:
        if value:
            raise _refusal(_TOOL_REFUSED["defer_loading"])
        return value

    @field_validator("allowed_callers")
    @classmethod
    def _check_callers(cls, value: list[str] | None) -> list[str] | None:
        if value not in (None, ["direct"]):
            raise PydanticCustomError("unsupported_value", "only the model itself calls tools here")
        return value


class ChoiceAuto(RequestModel):
    type: Literal["auto"]
    disable_parallel_tool_use: bool | None = None


class ChoiceAny(RequestModel):
    type: Literal["any"]
    disable_parallel_tool_use: bool | None = None


class ChoiceTool(RequestModel):
    type: Literal["tool"]
    name: str
    disable_parallel_tool_use: bool | None = None


class ChoiceNone(RequestModel):
    type: Literal["none"]


Choice = Annotated[ChoiceAuto | ChoiceAny | ChoiceTool | ChoiceNone, Field(discriminator="type")]
Display = Literal["summarized", "omitted"]


class ThinkingEnabled(RequestModel):
    type: Literal["enabled"]
    budget_tokens: int = Field(ge=1, lt=1 << 31)
    display: Display | None = None


class ThinkingAdaptive(RequestModel):
    type: Literal["adaptive"]
    display: Display | None = None


class ThinkingDisabled(RequestModel):
    type: Literal["disabled"]


Thinking = Annotated[
    ThinkingEnabled | ThinkingAdaptive | ThinkingDisabled, Field(discriminator="type")
]


class JSONFormat(RequestModel):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(RequestModel):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JSONFormat | None = None


class Metadata(RequestModel):
    user_id: str | None = None


class CountTokensRequest(RequestModel):
    """A conversation in Anthropic's shape."""

    model: str
    messages: list[Turn] = Field(min_length=1)
    system: TextContent | None = None
    tools: list[CustomTool] | None = Field(None, max_length=128)
    tool_choice: Choice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    speed: Literal["standard"] | None = Field(None, description="There is one speed.")
    cache_control: Cached = None

    billing_policy: Any = None
    compaction: Any = None
    container: Any = None
    context_management: Any = None
    fallback_credit_token: Any = None
    fallbacks: Any = None
    inference_geo: Any = None
    mcp_servers: Any = None
    thread: Any = None

    @field_validator(*REFUSED.keys() - {"thread"}, mode="before")
    @classmethod
    def _refuse(cls, value: Any, info: ValidationInfo) -> Any:
        if value is not None:
            raise _refusal(REFUSED[str(info.field_name)])
        return value


class MessagesRequest(CountTokensRequest):
    """A conversation in Anthropic's shape, and how to answer it."""

    max_tokens: TokenLimit
    stream: bool | None = None
    stop_sequences: list[StopString] | None = Field(None, max_length=16)
    temperature: float | None = Field(None, ge=0, le=1)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=0, le=1 << 31)

    diagnostics: dict[str, Any] | None = None
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
