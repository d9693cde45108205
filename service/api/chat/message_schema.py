"""The messages of a chat request."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, field_validator
from pydantic_core import PydanticCustomError

from service.api.common.schema import CALLED_NAME, MAX_CALLED_CHARS, Replayed

_PART_TYPES = ("text", "refusal")


class TextPart(Replayed):
    type: Literal["text"]
    text: str


class RefusalPart(Replayed):
    type: Literal["refusal"]
    refusal: str


def _check_part(value: Any) -> Any:
    kind = value.get("type") if isinstance(value, dict) else None
    if kind in ("input_text", "output_text"):
        raise PydanticCustomError(
            "unsupported_part",
            "content parts of type {kind} are the responses route's; use 'text' here",
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


Part = Annotated[TextPart | RefusalPart, Field(discriminator="type"), BeforeValidator(_check_part)]
Content = Annotated[
    Annotated[str, Tag("string")] | Annotated[list[Part], Tag("parts")],
    Discriminator(_content_tag),
]
ParticipantName = Annotated[str | None, Field(description="Accepted without effect.")]


class SystemMessage(Replayed):
    role: Literal["system"]
    content: Content
    name: ParticipantName = None


class DeveloperMessage(Replayed):
    role: Literal["developer"]
    content: Content
    name: ParticipantName = None


class UserMessage(Replayed):
    role: Literal["user"]
    content: Content
    name: ParticipantName = None


class ToolMessage(Replayed):
    """What a tool answered to the call `tool_call_id`."""

    role: Literal["tool"]
    content: Content | None = None
    tool_call_id: str
    name: ParticipantName = None


class FunctionCall(Replayed):
    name: str = Field(min_length=1, max_length=MAX_CALLED_CHARS, pattern=CALLED_NAME)
    arguments: str


class ToolCall(Replayed):
    id: str = Field(min_length=1, max_length=256)
    type: Literal["function"] = "function"
    function: FunctionCall


class CustomCall(Replayed):
    name: str = Field(min_length=1, max_length=MAX_CALLED_CHARS, pattern=CALLED_NAME)
    input: str


class CustomToolCall(Replayed):
    id: str = Field(min_length=1, max_length=256)
    type: Literal["custom"]
    custom: CustomCall


def _call_tag(value: Any) -> str:
    """A function call may leave out its type."""
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return "custom" if kind == "custom" else "function"


AnyToolCall = Annotated[
    Annotated[ToolCall, Tag("function")] | Annotated[CustomToolCall, Tag("custom")],
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
    audio: Any = Field(None, description="Refused: gpt-oss has no audio.")
    function_call: Any = Field(None, description="Refused: use `tool_calls`.")

    @field_validator("audio", "function_call", mode="before")
    @classmethod
    def _refuse(cls, value: Any) -> Any:
        if value is not None:
            raise PydanticCustomError(
                "unsupported_field", "not supported here; answers hold text and `tool_calls`"
            )
        return value


ChatMessage = Annotated[
    SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage,
    Field(discriminator="role"),
]


def text_of(content: str | list[TextPart | RefusalPart] | None) -> str:
    """The parts' text end to end, nothing added between them."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.text if isinstance(part, TextPart) else part.refusal for part in content)
