"""What the renderer refuses.

ConversationError
└── UnknownToolCall       a tool message answers a call that no earlier message made
ToolTooLarge              a tool's schema takes more work to describe than anybody gets
"""

from __future__ import annotations


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
    """Small or large, it refers to itself or to others too often to be written out."""

    def __init__(self, name: str, limit: int) -> None:
        super().__init__(f"the tool {name!r} takes more than {limit} steps to describe")
        self.name = name
        self.limit = limit
