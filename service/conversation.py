"""Conversations and the pieces of an answer: plain data, in no model's format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, NamedTuple

import msgspec

INSTRUCTION_ROLES = ("system", "developer")
# As requests name it; a format takes the nearest that its model knows, and for None its usual one.
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
ReasoningEffort = Effort | None
Verbosity = Literal["low", "medium", "high"]

TextPiece = tuple[str, tuple[int, ...]]  # text, and the positions of the tokens it came from

# Stands between two messages that become one text.
MESSAGE_BREAK = "\n\n"

FUNCTIONS = "functions"  # the namespace of plain functions


def qualified_name(name: str, namespace: str | None = None) -> str:
    """A tool's name with its namespace, which tells it from those of others.

    Plain functions keep their name.
    """
    return name if namespace in (None, FUNCTIONS) else f"{namespace}.{name}"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call the assistant made in an earlier turn."""

    id: str
    name: str
    arguments: str  # the JSON text as it was given; never re-encoded
    is_custom: bool = False  # `arguments` is free text


@dataclass(frozen=True, slots=True)
class Message:
    """One message of the history; text parts are joined already."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str = ""
    reasoning: str = ""  # assistant only
    tool_calls: tuple[ToolCall, ...] = ()  # assistant only
    tool_call_id: str | None = None  # tool only


@dataclass(frozen=True, slots=True)
class FreeText:
    """The input of a custom tool, which is not JSON."""

    pattern: str | None = None  # a regular expression that it must match
    lark: str | None = None  # or a grammar in Lark's syntax


@dataclass(frozen=True, slots=True)
class Tool:
    """A function the model may call, or a custom tool."""

    name: str  # qualified: `namespace.name`, of a plain function its name
    description: str = ""
    parameters: Mapping[str, Any] | None = None  # a JSON Schema
    strict: bool | None = None  # True: arguments must follow the schema; no part of the prompt
    free_text: FreeText | None = None  # custom tools have this, and no parameters
    field: str = ""  # where the request has its parameters or grammar; errors name it

    @property
    def namespace(self) -> str:
        return self.name.rpartition(".")[0] or FUNCTIONS

    @property
    def short_name(self) -> str:
        """The name inside its namespace."""
        return self.name.rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class ResponseFormat:
    """What the final message must be, for the model to read; the grammar enforces it."""

    schema: Mapping[str, Any]  # a JSON Schema
    name: str = "response"
    description: str = ""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Everything a prompt is made of."""

    messages: tuple[Message, ...]
    current_date: str  # YYYY-MM-DD
    tools: tuple[Tool, ...] = ()  # empty when tool_choice is none
    reasoning_effort: ReasoningEffort = None
    response_format: ResponseFormat | None = None
    namespaces: Mapping[str, str] = field(default_factory=dict)  # their descriptions
    builtins: tuple[str, ...] = ()  # of `browser` and `python`, those that are offered
    verbosity: Verbosity = "medium"
    opens_answer: bool = True  # the prompt ends with the beginning of the answer's header


class DeltaKind(StrEnum):
    """What a delta adds to an answer."""

    REASONING = "reasoning"
    CONTENT = "content"
    TOOL_CALL = "tool_call"  # opens call `call_index` under `name`; `text` is empty
    CUSTOM_CALL = "custom_call"  # the same of a custom tool
    ARGUMENTS = "arguments"  # adds `text` to the arguments of call `call_index`
    HOSTED_CALL = "hosted_call"  # a call of `name` that this server runs; `text` is its input
    HOSTED_END = "hosted_end"  # that call is whole; it goes no further than the Choice
    HOSTED_RESULT = "hosted_result"  # what it gave; `name` is `completed` or `failed`
    COMPACTION = "compaction"  # replaces the conversation so far; `text` is sealed


CALL_KINDS = (DeltaKind.TOOL_CALL, DeltaKind.CUSTOM_CALL)  # what opens a call for the client


class Delta(msgspec.Struct, frozen=True, gc=False):  # made for every token: a dataclass is slow
    """A piece of an answer, in the order the model wrote it."""

    kind: DeltaKind
    text: str = ""
    call_index: int = 0
    name: str = ""
    # Positions, counted from the first generated token, of the tokens this text came from.
    positions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Builtins:
    """What becomes of calls of tools that the client did not offer."""

    hosted: frozenset[str] = frozenset()  # built-in tools that this server runs
    returns_others: bool = False  # the client gets all other calls; else they are reasoning


NO_BUILTINS = Builtins()


class Turn(NamedTuple):
    """A turn of a transcript, as traces show it."""

    role: str
    kind: Literal["text", "reasoning", "tool_call"]
    text: str


class ConversationError(Exception):
    """A conversation that no prompt can be made of; `message_index` says where."""

    def __init__(self, message: str, message_index: int) -> None:
        super().__init__(message)
        self.message_index = message_index


class UnknownToolCall(ConversationError):
    """A tool message's `tool_call_id` names no call of an earlier assistant message."""

    def __init__(self, tool_call_id: str | None, message_index: int) -> None:
        super().__init__(
            f"messages[{message_index}].tool_call_id is {tool_call_id!r}, which no earlier "
            "assistant message called; send the assistant message with that tool_call before "
            "its result.",
            message_index,
        )
        self.tool_call_id = tool_call_id


class ToolTooLarge(Exception):
    """A tool's schema refers to itself or to others too often to be written out."""

    def __init__(self, name: str, limit: int) -> None:
        super().__init__(f"the tool {name!r} takes more than {limit} steps to describe")
        self.name = name
        self.limit = limit
