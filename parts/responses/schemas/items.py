"""The input items of POST /v1/responses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from parts.responses.schemas.compaction import CompactionItem, CompactionTrigger
from parts.responses.schemas.configuration import ConfigurationUpdate
from parts.responses.schemas.tool_items import (
    FOREIGN,
    TOOL_ITEMS,
    CallId,
    ItemId,
    ItemStatus,
    ToolItem,
)
from parts.responses.schemas.tools import NamespaceName
from service.api.common.foreign import FILES, ForeignPart, FromTool, ReadablePart, joined
from service.api.common.schema import CALLED_NAME, MAX_CALLED_CHARS, Replayed

_PART_TYPES = ("input_text", "output_text", "refusal")
ITEM_TYPES = (
    "message",
    "reasoning",
    "function_call",
    "function_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
    "web_search_call",
    "code_interpreter_call",
    "item_reference",
    "compaction",
    "compaction_trigger",
    "configuration_update",
    *TOOL_ITEMS,
)

IgnoredText = Annotated[str | None, Field(description="Accepted without effect.")]


class InputText(Replayed):
    """Text of a message."""

    type: Literal["input_text"]
    text: str


class ReplayedText(Replayed):
    """Text of an earlier answer."""

    type: Literal["output_text"]
    text: str


class Refusal(Replayed):
    """A refusal in an earlier answer."""

    type: Literal["refusal"]
    refusal: str


def _check_part(value: Any) -> Any:
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text":
        raise PydanticCustomError(
            "unsupported_part",
            "content parts of type 'text' belong to the chat route; use 'input_text', or "
            "'output_text' in an assistant's message",
        )
    if isinstance(kind, str) and kind not in _PART_TYPES:
        raise PydanticCustomError(
            "unsupported_part",
            "content parts of type {kind} are not supported: gpt-oss reads text only",
            {"kind": repr(kind[:64])},
        )
    return value


def _check_messages_part(value: Any) -> Any:
    is_file = isinstance(value, dict) and value.get("type") in FILES
    return value if is_file or isinstance(value, FromTool) else _check_part(value)


def _content_tag(value: Any) -> str:
    return "parts" if isinstance(value, list) else "string"


def _part_tag(value: Any) -> str:
    """The tag of a part, which may be of any type."""
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    if not isinstance(kind, str):
        return "input_text"  # whose error says what is missing
    return kind if kind in _PART_TYPES else "foreign"


P = TypeVar("P")
_Content = Annotated[
    Annotated[str, Tag("string")] | Annotated[list[P], Tag("parts")], Discriminator(_content_tag)
]
_OwnPart = (
    Annotated[InputText, Tag("input_text")]
    | Annotated[ReplayedText, Tag("output_text")]
    | Annotated[Refusal, Tag("refusal")]
)
Content = _Content[
    Annotated[
        _OwnPart | Annotated[ReadablePart, Tag("foreign")],
        Discriminator(_part_tag),
        BeforeValidator(_check_messages_part),
    ]
]
ToolContent = _Content[
    Annotated[_OwnPart | Annotated[ForeignPart, Tag("foreign")], Discriminator(_part_tag)]
]


class MessageItem(Replayed):
    """A message of any role; `type` may be left out."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Content
    id: ItemId = None
    status: ItemStatus = None
    phase: Literal["commentary", "final_answer"] | None = Field(
        None, description="`final_answer` ends an assistant's turn when messages are replayed."
    )


class ReplayedReasoningText(Replayed):
    """Text of earlier thoughts; an encrypted part of another server's is left out of the prompt."""

    ignored = Replayed.ignored | {"encrypted_content"}

    type: Literal["reasoning_text", "text", "encrypted_content"]
    text: str = ""


class SummaryText(Replayed):
    """Text of a summary of earlier thoughts."""

    type: Literal["summary_text"]
    text: str


class ReplayedReasoning(Replayed):
    """Earlier reasoning; its `content` is replayed while a tool loop runs."""

    type: Literal["reasoning"]
    content: list[ReplayedReasoningText] | None = None
    summary: list[SummaryText] | None = Field(None, description="Accepted without effect.")
    encrypted_content: str | None = Field(
        None, description="Read where there is no `content`, if it is this server's."
    )
    id: ItemId = None
    status: ItemStatus = None


class _CallItem(Replayed):
    call_id: CallId
    namespace: NamespaceName | None = None
    name: str = Field(min_length=1, max_length=MAX_CALLED_CHARS, pattern=CALLED_NAME)
    id: ItemId = None
    status: ItemStatus = None


class OutputItem(Replayed):
    """What a tool answered to the call `call_id`."""

    call_id: CallId
    output: ToolContent
    id: ItemId = None
    status: ItemStatus = None
    name: IgnoredText = None


class FunctionCallItem(_CallItem):
    """A call the model made earlier."""

    type: Literal["function_call"]
    arguments: str


class FunctionCallOutputItem(OutputItem):
    """What a function answered to the call `call_id`."""

    type: Literal["function_call_output"]


class CustomToolCallItem(_CallItem):
    """A call of a custom tool that the model made earlier."""

    type: Literal["custom_tool_call"]
    input: str


class CustomToolCallOutputItem(OutputItem):
    """What a custom tool answered to the call `call_id`."""

    type: Literal["custom_tool_call_output"]


class WebSearchCallItem(Replayed):
    """What the built-in tool `browser` did earlier; without `output` it says nothing."""

    type: Literal["web_search_call"]
    id: ItemId = None
    status: IgnoredText = None
    action: dict[str, Any] | None = None
    name: Literal["browser.search", "browser.open", "browser.find"] | None = None
    arguments: str = ""
    output: str | None = None


class ReplayedLogs(Replayed):
    """What an earlier run of code printed."""

    type: Literal["logs"]
    logs: str


class CodeInterpreterCallItem(Replayed):
    """What the built-in tool `python` did earlier; without `outputs` it says nothing."""

    type: Literal["code_interpreter_call"]
    id: ItemId = None
    status: IgnoredText = None
    code: str | None = None
    container_id: IgnoredText = None
    outputs: list[ReplayedLogs] | None = None


class ItemReference(Replayed):
    """An item of a stored response, by its id."""

    type: Literal["item_reference"] | None = None
    id: CallId


def _check_item(value: Any) -> Any:
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(kind, str) and kind not in ITEM_TYPES and kind not in FOREIGN:
        raise PydanticCustomError(
            "unsupported_part",
            "items of type {kind} are not supported; send any of {known}",
            {"kind": repr(kind[:64]), "known": ", ".join(ITEM_TYPES)},
        )
    return value


def _item_tag(value: Any) -> str:
    """A message and a reference may leave out their type."""
    if not isinstance(value, dict):
        return "message"
    kind = value.get("type") or ("message" if "role" in value else "item_reference")
    return kind if kind in ITEM_TYPES else "foreign" if kind in FOREIGN else "message"


InputItem = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[ReplayedReasoning, Tag("reasoning")]
    | Annotated[FunctionCallItem, Tag("function_call")]
    | Annotated[FunctionCallOutputItem, Tag("function_call_output")]
    | Annotated[CustomToolCallItem, Tag("custom_tool_call")]
    | Annotated[CustomToolCallOutputItem, Tag("custom_tool_call_output")]
    | Annotated[WebSearchCallItem, Tag("web_search_call")]
    | Annotated[CodeInterpreterCallItem, Tag("code_interpreter_call")]
    | Annotated[ItemReference, Tag("item_reference")]
    | Annotated[CompactionItem, Tag("compaction")]
    | Annotated[CompactionTrigger, Tag("compaction_trigger")]
    | Annotated[ConfigurationUpdate, Tag("configuration_update")]
    | ToolItem,
    Discriminator(_item_tag),
    BeforeValidator(_check_item),
]


def text_of(content: str | Sequence[InputText | ReplayedText | Refusal | ForeignPart]) -> str:
    """The parts' text end to end; foreign parts are on lines of their own."""
    if isinstance(content, str):
        return content
    return joined(
        (part.refusal if isinstance(part, Refusal) else part.text, isinstance(part, ForeignPart))
        for part in content
    )
