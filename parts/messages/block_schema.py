"""The messages of Anthropic's API: roles and content blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import BeforeValidator, Discriminator, Field, Tag, field_validator
from pydantic_core import PydanticCustomError

from parts.messages import client_tools
from parts.messages.blocks import unsealed
from parts.messages.server_tools import (
    ServerResultBlock,
    ServerTool,
    ServerToolUseBlock,
    SilentBlock,
    block_tag,
    is_server_tool,
)
from service.api.common.foreign import (
    FILES,
    ForeignPart,
    FromTool,
    ReadablePart,
    joined,
    mark_results,
)
from service.api.common.schema import CALLED_NAME, MAX_CALLED_CHARS, OfferedModel, Replayed

B = TypeVar("B")

TOOL_NAME = r"^[A-Za-z0-9_-]{1,128}$"

_KNOWN = ("text", "thinking", "redacted_thinking", "tool_use", "tool_result")


class TextBlock(Replayed):
    """Text."""

    type: Literal["text"]
    text: str


class ThinkingBlock(Replayed):
    """An earlier chain of thought; replayed while a tool loop runs.

    Where its text was omitted, the signature that this server gave it brings it back.
    """

    type: Literal["thinking"]
    thinking: str
    signature: str = Field("", description="Not verified.")

    @property
    def thoughts(self) -> str:
        """The text of the thoughts, which the signature may hold."""
        return self.thinking or unsealed(self.signature)


class RedactedThinkingBlock(Replayed):
    """Another server's encrypted thoughts: left out of the prompt, because it cannot be read
    here."""

    type: Literal["redacted_thinking"]
    data: str


class ToolUseBlock(Replayed):
    """An earlier answer's call of a tool."""

    type: Literal["tool_use"]
    id: str = Field(min_length=1, max_length=256)
    name: str = Field(max_length=MAX_CALLED_CHARS, pattern=CALLED_NAME)
    input: dict[str, Any]


def _type_of(value: Any) -> Any:
    return value.get("type") if isinstance(value, dict) else None


def _check_block(value: Any) -> Any:
    kind = _type_of(value)
    if isinstance(kind, str) and kind not in _KNOWN:
        raise PydanticCustomError(
            "unsupported_part",
            "content blocks of type {kind} are not supported: gpt-oss reads text, and calls "
            "only the tools of its client",
            {"kind": repr(kind)},
        )
    return value


def _content_tag(value: Any) -> str:
    return "blocks" if isinstance(value, list) else "string"


Content = Annotated[
    Annotated[str, Tag("string")] | Annotated[list[B], Tag("blocks")], Discriminator(_content_tag)
]
_OnlyText = Annotated[TextBlock, BeforeValidator(_check_block)]
TextContent = Content[_OnlyText]


class ToolReference(Replayed):
    """A tool that a search has found: from now on it is offered, if it was deferred."""

    type: Literal["tool_reference"]
    tool_name: str


def _tag_among(*known: str) -> Discriminator:
    """Tells blocks apart; those of other types are foreign, and one without a type is text."""

    def tag(value: Any) -> str:
        kind = _type_of(value) if isinstance(value, dict) else getattr(value, "type", None)
        if not isinstance(kind, str):
            return "text"
        return kind if kind in known else "foreign"

    return Discriminator(tag)


_Text = Annotated[TextBlock, Tag("text")]
ResultContent = Content[
    Annotated[
        _Text
        | Annotated[ToolReference, Tag("tool_reference")]
        | Annotated[ForeignPart, Tag("foreign")],
        _tag_among("text", "tool_reference"),
    ]
]


class ToolResultBlock(Replayed):
    """What the client's tool answered to the call `tool_use_id`."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: ResultContent | None = None
    is_error: bool | None = None


def _check_users_block(value: Any) -> Any:
    is_file = _type_of(value) in FILES
    return value if is_file or isinstance(value, FromTool) else _check_block(value)


_UserBlock = Annotated[
    _Text
    | Annotated[ToolResultBlock, Tag("tool_result")]
    | Annotated[ReadablePart, Tag("foreign")],
    _tag_among("text", "tool_result"),
    BeforeValidator(_check_users_block),
]


def _check_assistants_block(value: Any) -> Any:
    kind = _type_of(value)
    is_known = isinstance(kind, str) and (kind == "compaction" or block_tag(kind) is not None)
    return value if is_known else _check_block(value)


class CompactionBlock(Replayed):
    """A summary of what is before it, which `encrypted_content` has; without content, none."""

    type: Literal["compaction"]
    content: str | None = None
    encrypted_content: str | None = Field(None, max_length=1 << 20)
    signature: str | None = Field(None, max_length=1 << 20)
    tool_changes: list[Any] | None = Field(None, description="Accepted without effect.")


_ASSISTANTS: Final = ("text", "thinking", "redacted_thinking", "tool_use", "compaction")


def _assistants_tag(value: Any) -> str:
    kind = _type_of(value) if isinstance(value, dict) else getattr(value, "type", None)
    if not isinstance(kind, str) or kind in _ASSISTANTS:
        return kind or "text"
    return block_tag(kind) or "text"


_AssistantBlock = Annotated[
    _Text
    | Annotated[ThinkingBlock, Tag("thinking")]
    | Annotated[RedactedThinkingBlock, Tag("redacted_thinking")]
    | Annotated[ToolUseBlock, Tag("tool_use")]
    | Annotated[CompactionBlock, Tag("compaction")]
    | Annotated[ServerToolUseBlock, Tag("server_tool_use")]
    | Annotated[ServerResultBlock, Tag("server_result")]
    | Annotated[SilentBlock, Tag("silent")],
    Discriminator(_assistants_tag),
    BeforeValidator(_check_assistants_block),
]


class _ClientTool(OfferedModel):
    """What all tools of the client's have."""

    type: str | None = None
    name: str = Field(pattern=TOOL_NAME)
    strict: bool | None = None
    input_examples: list[dict[str, Any]] | None = Field(
        None, description="Accepted without effect."
    )
    allowed_callers: list[str] | None = Field(None, description='`["direct"]`.')
    defer_loading: bool | None = Field(
        None, description="`true`: offered once a message adds it or a result refers to it."
    )

    @field_validator("allowed_callers")
    @classmethod
    def _check_callers(cls, value: list[str] | None) -> list[str] | None:
        if value not in (None, ["direct"]):
            raise PydanticCustomError("unsupported_value", "only the model itself calls tools here")
        return value


class MessageTool(_ClientTool):
    """A function of the client's."""

    type: Literal["custom"] | None = None
    description: str | None = None
    input_schema: dict[str, Any] = Field(description="A JSON Schema.")
    eager_input_streaming: bool | None = Field(None, description="Accepted: inputs always stream.")

    @field_validator("type", mode="before")
    @classmethod
    def _check_type(cls, value: Any) -> Any:
        if isinstance(value, str) and value != "custom":
            message = (
                "of the tools of Anthropic's own, those of type 'bash_…', 'text_editor_…' and "
                "'memory_…' are supported: define others by an input_schema"
            )
            raise PydanticCustomError("unsupported_value", message)
        return value


class TypedMessageTool(_ClientTool):
    """A tool of the client's whose type implies its schema."""

    type: str = Field(pattern=client_tools.KIND)
    max_characters: int | None = Field(None, ge=1, description="Accepted: the client shows files.")

    @property
    def description(self) -> str:
        return client_tools.description_of(self.type)

    @property
    def input_schema(self) -> dict[str, Any]:
        return client_tools.schema_of(self.type)


ClientTool = MessageTool | TypedMessageTool


def _tool_tag(value: Any) -> str:
    kind = _type_of(value) if isinstance(value, dict) else getattr(value, "type", None)
    if client_tools.is_client_tool(kind):
        return "typed"
    return "server" if is_server_tool(kind) else "client"


_Client = Annotated[MessageTool, Tag("client")] | Annotated[TypedMessageTool, Tag("typed")]
OfferedTool = Annotated[_Client | Annotated[ServerTool, Tag("server")], Discriminator(_tool_tag)]


class ChangedTool(Replayed):
    """A tool of the request's `tools`."""

    type: Literal["tool_reference"]
    name: str


class DefinedTool(Replayed):
    """A tool of which nothing is known yet."""

    type: Literal["tool_definition"]
    definition: Annotated[_Client, Discriminator(_tool_tag)]


class ToolAddition(Replayed):
    """From here on the tool is offered."""

    type: Literal["tool_addition"]
    tool: Annotated[ChangedTool | DefinedTool, Field(discriminator="type")]


class ToolRemoval(Replayed):
    """From here on the tool is not offered."""

    type: Literal["tool_removal"]
    tool: ChangedTool


def _check_system_block(value: Any) -> Any:
    is_change = _type_of(value) in ("tool_addition", "tool_removal")
    return value if is_change else _check_block(value)


_SystemBlock = Annotated[
    TextBlock | ToolAddition | ToolRemoval,
    Field(discriminator="type"),
    BeforeValidator(_check_system_block),
]


class SystemTurn(Replayed):
    """Instructions amid the conversation."""

    role: Literal["system"]
    content: Content[_SystemBlock]


class UserTurn(Replayed):
    """What the user says, and results of tools."""

    role: Literal["user"]
    content: Content[_UserBlock]


class AssistantTurn(Replayed):
    """An earlier answer, or the beginning of this one."""

    role: Literal["assistant"]
    content: Content[_AssistantBlock]


AnyBlock = TextBlock | ToolReference | ToolAddition | ToolRemoval | ForeignPart
Turn = Annotated[SystemTurn | UserTurn | AssistantTurn, Field(discriminator="role")]


def _has_result(turn: Mapping[str, Any]) -> bool:
    content = turn.get("content")
    return isinstance(content, list) and any(_type_of(each) == "tool_result" for each in content)


Turns = Annotated[list[Turn], BeforeValidator(lambda turns: mark_results(turns, _has_result))]


def texts_of(content: str | Sequence[AnyBlock] | None) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [block.text for block in content or () if isinstance(block, TextBlock)]


def text_of(content: str | Sequence[AnyBlock] | None) -> str:
    """The blocks' text end to end; foreign blocks are on lines of their own."""
    if content is None or isinstance(content, str):
        return content or ""
    return joined(
        (block.text, isinstance(block, ForeignPart))
        for block in content
        if isinstance(block, TextBlock | ForeignPart)
    )
