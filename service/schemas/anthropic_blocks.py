"""The messages of Anthropic's API: roles and content blocks."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from service.schemas.common import RequestModel
from service.schemas.messages import CALLED_NAME

TOOL_NAME = r"^[A-Za-z0-9_-]{1,128}$"

_KNOWN = ("text", "thinking", "redacted_thinking", "tool_use", "tool_result")


class CacheControl(RequestModel):
    """Accepted without effect: shared prefixes are found without it."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


Cached = Annotated[CacheControl | None, Field(description="Accepted without effect.")]


class TextBlock(RequestModel):
    type: Literal["text"]
    text: str
    cache_control: Cached = None
    citations: Any = Field(None, description="Accepted without effect.")


class ThinkingBlock(RequestModel):
    """An earlier chain of thought; replayed while a tool loop runs."""

    type: Literal["thinking"]
    thinking: str
    signature: str = Field("", description="Accepted without effect: not verified.")


class RedactedThinkingBlock(RequestModel):
    """Another server's encrypted thoughts: left out of the prompt, for nobody here can read it."""

    type: Literal["redacted_thinking"]
    data: str


class ToolUseBlock(RequestModel):
    type: Literal["tool_use"]
    id: str = Field(min_length=1, max_length=256)
    name: str = Field(max_length=128, pattern=CALLED_NAME)
    input: dict[str, Any]
    cache_control: Cached = None
    caller: Any = Field(None, description="Accepted without effect.")
    toolset_name: None = None


def _check_block(value: Any) -> Any:
    kind = value.get("type") if isinstance(value, dict) else None
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


_OnlyText = Annotated[TextBlock, BeforeValidator(_check_block)]
TextContent = Annotated[
    Annotated[str, Tag("string")] | Annotated[list[_OnlyText], Tag("blocks")],
    Discriminator(_content_tag),
]


class ToolResultBlock(RequestModel):
    """What the client's tool answered to the call `tool_use_id`."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: TextContent | None = None
    is_error: bool | None = None
    cache_control: Cached = None
    toolset_name: None = None


_UserBlock = Annotated[
    TextBlock | ToolResultBlock, Field(discriminator="type"), BeforeValidator(_check_block)
]
_AssistantBlock = Annotated[
    TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock,
    Field(discriminator="type"),
    BeforeValidator(_check_block),
]


class SystemTurn(RequestModel):
    role: Literal["system"]
    content: TextContent


class UserTurn(RequestModel):
    role: Literal["user"]
    content: Annotated[
        Annotated[str, Tag("string")] | Annotated[list[_UserBlock], Tag("blocks")],
        Discriminator(_content_tag),
    ]


class AssistantTurn(RequestModel):
    role: Literal["assistant"]
    content: Annotated[
        Annotated[str, Tag("string")] | Annotated[list[_AssistantBlock], Tag("blocks")],
        Discriminator(_content_tag),
    ]


Turn = Annotated[SystemTurn | UserTurn | AssistantTurn, Field(discriminator="role")]


def texts_of(content: str | list[TextBlock] | None) -> list[str]:
    """The text of each block; a string is one block."""
    if isinstance(content, str):
        return [content]
    return [block.text for block in content or ()]
