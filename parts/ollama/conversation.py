"""Ollama's messages → the conversation that the renderer takes."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from parts.ollama.schema import OllamaCall, OllamaMessage
from service.api.common.foreign import line_of
from service.conversation import MESSAGE_BREAK, Message, ToolCall
from service.errors import RequestError
from service.work import rest

_KEPT = ("tool", "user")  # a picture after a tool's result came with it


class OllamaHistory:
    """The messages of a request, each with the ids of its calls.

    Ollama's clients pair results with calls by order or by name, some by an id.
    """

    def __init__(self, messages: Sequence[OllamaMessage]) -> None:
        self.num_unread = 0
        self.messages: list[Message] = []
        self._open: list[ToolCall] = []  # calls that have no result
        self._ids: dict[str, str] = {}  # ours, by the client's
        self._is_after_result = False
        for index, message in enumerate(messages):
            rest()
            self.messages.append(self._read(message, index))
            is_result = message.role == "tool"
            self._is_after_result = is_result or (
                self._is_after_result and message.role != "assistant"
            )

    def _read(self, message: OllamaMessage, index: int) -> Message:
        content = self._content(message, index)
        if message.role == "tool":
            return Message("tool", content, tool_call_id=self._answered(message, index))
        if message.role != "assistant":
            return Message(message.role, content)
        calls = tuple(
            self._call(call, f"call_{index}_{at}")
            for at, call in enumerate(message.tool_calls or ())
        )
        self._open += calls
        return Message("assistant", content, reasoning=message.thinking or "", tool_calls=calls)

    def _call(self, call: OllamaCall, id: str) -> ToolCall:
        if call.id:
            self._ids[call.id] = id
        return ToolCall(
            id, call.function.name, msgspec.json.encode(call.function.arguments).decode()
        )

    def _answered(self, message: OllamaMessage, index: int) -> str:
        """Our id of the call that a result answers; raises RequestError."""
        wanted, name = self._ids.get(message.tool_call_id or ""), message.tool_name
        named = [call for call in self._open if call.name == name]
        found = [call for call in self._open if call.id == wanted] or named or self._open
        if not found:
            param = f"messages[{index}]"
            raise RequestError(
                f"{param} is the result of a tool, and no earlier assistant message has a call "
                "without one; send the assistant message with its tool_calls before it.",
                param=param,
                code="unknown_tool_call",
            )
        answered = found[0]
        self._open.remove(answered)
        return answered.id

    def _content(self, message: OllamaMessage, index: int) -> str:
        """The text; pictures of a tool are a line each, those of a user are refused."""
        images, text = message.images or (), message.content or ""
        if not images:
            return text
        is_from_tool = message.role == "tool" or (self._is_after_result and message.role in _KEPT)
        if not is_from_tool:
            raise RequestError(
                f"messages[{index}].images: gpt-oss reads text only; send what is in the picture "
                "as text.",
                param=f"messages[{index}].images",
                code="unsupported_value",
            )
        self.num_unread += len(images)
        lines = [line_of({"type": "image", "data": image}) for image in images]
        return MESSAGE_BREAK.join(filter(None, (text, "\n".join(lines))))
