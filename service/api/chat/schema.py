"""The body of POST /v1/chat/completions.

Every field of OpenAI's published schema is one of: supported, accepted without effect
(texts.yaml), or refused with the reason (REFUSED). Anything else is an unknown field.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag, field_validator
from pydantic_core import PydanticCustomError

from service.api.common.foreign import (
    FILES,
    ForeignPart,
    FromTool,
    ReadablePart,
    joined,
    mark_results,
)
from service.api.common.free_text import NestedInputFormat
from service.api.common.guidance_schema import (
    FunctionName,
    GivenToolChoice,
    ResponseFormat,
    StructuredOutputs,
)
from service.api.common.schema import (
    CALLED_NAME,
    MAX_CALLED_CHARS,
    NVEXT,
    OfferedModel,
    PromptLogprobsCount,
    Refused,
    Replayed,
    RequestModel,
    SamplingFields,
    Stop,
    StreamOptions,
    TokenLimit,
    refusing,
)
from service.conversation import Effort

_PART_TYPES = ("text", "refusal")

REFUSED: dict[str, str] = {
    "audio": "gpt-oss has no audio output",
    "bad_words": "give `logit_bias` -100 to the tokens of these words",
    "function_call": "the legacy form is not supported; use `tool_choice`",
    "functions": "the legacy form is not supported; use `tools`",
    "moderation": "this server does not moderate; run a moderation model beside it",
    "nvext": NVEXT,
    "prediction": "predicted outputs are not supported",
    "truncate_prompt_tokens": "shorten the conversation; a cut prompt is not valid",
}


class TextPart(Replayed):
    """A part of a message: text."""

    type: Literal["text"]
    text: str


class RefusalPart(Replayed):
    """A part of an earlier answer: a refusal."""

    type: Literal["refusal"]
    refusal: str


def _check_part(value: Any) -> Any:
    kind = value.get("type") if isinstance(value, dict) else None
    if kind in ("input_text", "output_text"):
        raise PydanticCustomError(
            "unsupported_part",
            "content parts of type {kind} belong to the responses route; use 'text' here",
            {"kind": repr(kind)},
        )
    if isinstance(kind, str) and kind not in _PART_TYPES:
        raise PydanticCustomError(
            "unsupported_part",
            "content parts of type {kind} are not supported: gpt-oss reads text only",
            {"kind": repr(kind)},
        )
    return value


def _content_tag(value: Any) -> str:
    return "parts" if isinstance(value, list) else "string"


def _check_users_part(value: Any) -> Any:
    is_file = isinstance(value, dict) and value.get("type") in FILES
    return value if is_file or isinstance(value, FromTool) else _check_part(value)


def _part_tag(value: Any) -> str:
    """The tag of a part, which may be of any type."""
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    if not isinstance(kind, str):
        return "text"  # whose error says what is missing
    return kind if kind in _PART_TYPES else "foreign"


_OwnPart = Annotated[TextPart, Tag("text")] | Annotated[RefusalPart, Tag("refusal")]
P = TypeVar("P")
_Content = Annotated[
    Annotated[str, Tag("string")] | Annotated[list[P], Tag("parts")], Discriminator(_content_tag)
]
Part = Annotated[TextPart | RefusalPart, Field(discriminator="type"), BeforeValidator(_check_part)]
Content = _Content[Part]
UserContent = _Content[
    Annotated[
        _OwnPart | Annotated[ReadablePart, Tag("foreign")],
        Discriminator(_part_tag),
        BeforeValidator(_check_users_part),
    ]
]
ToolContent = _Content[
    Annotated[_OwnPart | Annotated[ForeignPart, Tag("foreign")], Discriminator(_part_tag)]
]
ParticipantName = Annotated[str | None, Field(description="Accepted without effect.")]


class SystemMessage(Replayed):
    """Instructions of the system."""

    role: Literal["system"]
    content: Content
    name: ParticipantName = None


class DeveloperMessage(Replayed):
    """Instructions of the developer."""

    role: Literal["developer"]
    content: Content
    name: ParticipantName = None


class UserMessage(Replayed):
    """What the user says."""

    role: Literal["user"]
    content: UserContent
    name: ParticipantName = None


class ToolMessage(Replayed):
    """What a tool answered to the call `tool_call_id`."""

    role: Literal["tool"]
    content: ToolContent | None = None
    tool_call_id: str
    name: ParticipantName = None


class CalledFunction(Replayed):
    """The function that an earlier answer called."""

    name: str = Field(min_length=1, max_length=MAX_CALLED_CHARS, pattern=CALLED_NAME)
    arguments: str


class ToolCall(Replayed):
    """An earlier answer's call of a function."""

    id: str = Field(min_length=1, max_length=256)
    type: Literal["function"] = "function"
    function: CalledFunction


class CustomCall(Replayed):
    """The custom tool that an earlier answer called."""

    name: str = Field(min_length=1, max_length=MAX_CALLED_CHARS, pattern=CALLED_NAME)
    input: str


class ChatCustomToolCall(Replayed):
    """An earlier answer's call of a custom tool."""

    id: str = Field(min_length=1, max_length=256)
    type: Literal["custom"]
    custom: CustomCall


def _call_tag(value: Any) -> str:
    """A function call may leave out its type."""
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return "custom" if kind == "custom" else "function"


AnyToolCall = Annotated[
    Annotated[ToolCall, Tag("function")] | Annotated[ChatCustomToolCall, Tag("custom")],
    Discriminator(_call_tag),
]


class AssistantMessage(Replayed):
    """An earlier answer; its reasoning is replayed while a tool loop runs."""

    role: Literal["assistant"]
    content: Content | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = Field(None, description="The same as `reasoning`.")
    tool_calls: list[AnyToolCall] | None = None
    name: ParticipantName = None
    audio: Refused = None
    function_call: Refused = None

    _refuse = refusing(
        dict.fromkeys(
            ("audio", "function_call"), "not supported here; answers hold text and `tool_calls`"
        )
    )


ChatMessage = Annotated[
    SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage,
    Field(discriminator="role"),
]


def _mark(messages: Any) -> Any:
    return mark_results(messages, lambda message: message.get("role") == "tool")


ChatMessages = Annotated[list[ChatMessage], BeforeValidator(_mark)]


def text_of(content: str | Sequence[TextPart | RefusalPart | ForeignPart] | None) -> str:
    """The parts' text end to end; foreign parts are on lines of their own."""
    if content is None or isinstance(content, str):
        return content or ""
    return joined(
        (
            part.refusal if isinstance(part, RefusalPart) else part.text,
            isinstance(part, ForeignPart),
        )
        for part in content
    )


class FunctionDefinition(OfferedModel):
    """A function's name, what it does, and the JSON schema of its arguments."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = Field(None, description="A JSON Schema.")
    strict: bool | None = Field(
        None, description="`true`: the arguments follow the schema, whatever tool_choice is."
    )


class ChatFunctionTool(OfferedModel):
    """A function that the model may call."""

    type: Literal["function"]
    function: FunctionDefinition


class CustomDefinition(OfferedModel):
    """A custom tool's name, what it does, and what its input looks like."""

    name: FunctionName
    description: str | None = None
    format: NestedInputFormat | None = Field(None, description="What the input must be.")


class ChatCustomTool(OfferedModel):
    """A tool that the client runs on free text."""

    type: Literal["custom"]
    custom: CustomDefinition


class BuiltinTool(RequestModel):
    """Extension: a tool that the server runs, where the operator connected it."""

    model_config = ConfigDict(extra="allow")

    type: Literal["web_search", "web_search_preview", "code_interpreter"]


Tool = Annotated[ChatFunctionTool | ChatCustomTool | BuiltinTool, Field(discriminator="type")]


class ReasoningOptions(RequestModel):
    """OpenRouter's name."""

    effort: Effort | None = None


class TemplateOptions(RequestModel):
    """What other servers pass on to gpt-oss's chat template."""

    reasoning_effort: Effort | None = None


class ChatRequest(SamplingFields):
    """A conversation, and how to answer it."""

    model: str | None = None
    messages: ChatMessages = Field(min_length=1)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = Field(None, ge=1, le=128)
    max_completion_tokens: TokenLimit | None = None
    max_tokens: TokenLimit | None = None
    stop: Stop | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    prompt_logprobs: PromptLogprobsCount = None
    reasoning_effort: Effort | None = None
    reasoning: ReasoningOptions | None = None
    chat_template_kwargs: TemplateOptions | None = None
    include_reasoning: bool | None = None
    return_token_ids: bool | None = None
    return_token_logprobs: bool | None = None
    continue_token_ids: list[int] | None = Field(None, max_length=131072)
    tools: list[Tool] | None = Field(None, max_length=128)
    tool_choice: GivenToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    thinking_token_budget: int | None = Field(None, ge=0, lt=1 << 31)
    web_search_options: dict[str, Any] | None = None
    modalities: list[str] | None = Field(None, description='`["text"]`.')
    verbosity: Literal["low", "medium", "high"] | None = None

    user: str | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None

    audio: Refused = None
    function_call: Refused = None
    bad_words: Refused = None
    functions: Refused = None
    moderation: Refused = None
    nvext: Refused = None
    prediction: Refused = None
    truncate_prompt_tokens: Refused = None

    _refuse = refusing(REFUSED)

    @field_validator("modalities")
    @classmethod
    def _check_modalities(cls, value: list[str] | None) -> list[str] | None:
        if value not in (None, ["text"]):
            raise PydanticCustomError("unsupported_value", "gpt-oss writes text only")
        return value
