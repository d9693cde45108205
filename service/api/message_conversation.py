"""Anthropic's turns and blocks → the conversation that the renderer takes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from service.errors import RequestError
from service.harmony.types import (
    Conversation,
    Message,
    ReasoningEffort,
    ResponseFormat,
    Tool,
    ToolCall,
)
from service.schemas.anthropic_blocks import (
    AssistantTurn,
    SystemTurn,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    UserTurn,
    texts_of,
)
from service.schemas.anthropic_request import CountTokensRequest, CustomTool


class History:
    """The messages of a request, and which field each one came from."""

    def __init__(self, request: CountTokensRequest) -> None:
        self.messages: list[Message] = []
        self._params: list[str] = []
        self._call_ids: set[str] = set()
        for text in texts_of(request.system):
            self._add("system", Message("system", text))
        for index, turn in enumerate(request.messages):
            self._add_turn(f"messages[{index}]", turn)
        if isinstance(request.messages[-1], AssistantTurn):
            raise RequestError(
                "The last message is the assistant's, but answers cannot be begun for the model; "
                "end with a user message.",
                param=f"messages[{len(request.messages) - 1}]",
                code="unsupported_value",
            )

    def param_of(self, index: int) -> str:
        """The field that names the call which message `index` answers."""
        return f"{self._params[index]}.tool_use_id"

    def _add(self, param: str, message: Message) -> None:
        self.messages.append(message)
        self._params.append(param)

    def _add_turn(self, param: str, turn: SystemTurn | UserTurn | AssistantTurn) -> None:
        if isinstance(turn, AssistantTurn):
            self._add(param, self._assistant(turn, param))
        elif isinstance(turn, SystemTurn):
            self._add(param, Message("system", "\n\n".join(texts_of(turn.content))))
        elif isinstance(turn.content, str):
            self._add(param, Message("user", turn.content))
        else:
            for place, message in _user(turn.content):
                self._add(f"{param}.content[{place}]", message)

    def _assistant(self, turn: AssistantTurn, param: str) -> Message:
        """One message, as on the chat route: its thoughts, its text, its calls."""
        if isinstance(turn.content, str):
            return Message("assistant", turn.content)
        blocks = turn.content
        for index, block in enumerate(blocks):
            if isinstance(block, ToolUseBlock):
                self._check_id(block.id, f"{param}.content[{index}].id")
        return Message(
            "assistant",
            "".join(block.text for block in blocks if isinstance(block, TextBlock)),
            reasoning="".join(b.thinking for b in blocks if isinstance(b, ThinkingBlock)),
            tool_calls=tuple(
                ToolCall(block.id, block.name, _json(block.input))
                for block in blocks
                if isinstance(block, ToolUseBlock)
            ),
        )

    def _check_id(self, id: str, param: str) -> None:
        if id in self._call_ids:
            message = f"{param} repeats {id!r}; give each tool_use its own id."
            raise RequestError(message, param=param)
        self._call_ids.add(id)


def to_conversation(
    request: CountTokensRequest, history: History, date: str, effort: ReasoningEffort
) -> Conversation:
    """The request's history and tools as the renderer takes them."""
    is_hidden = request.tool_choice is not None and request.tool_choice.type == "none"
    return Conversation(
        messages=tuple(history.messages),
        current_date=date,
        tools=() if is_hidden else tools_of(request),
        reasoning_effort=effort,
        response_format=_described_format(request),
    )


def _described_format(request: CountTokensRequest) -> ResponseFormat | None:
    config = request.output_config
    return ResponseFormat(config.format.schema_) if config and config.format else None


def tools_of(request: CountTokensRequest) -> tuple[Tool, ...]:
    """The offered tools; raises RequestError for a name that comes twice."""
    seen: set[str] = set()
    for index, tool in enumerate(request.tools or ()):
        if tool.name in seen:
            raise RequestError(
                f"tools[{index}].name repeats {tool.name!r}; give each tool its own name.",
                param=f"tools[{index}].name",
            )
        seen.add(tool.name)
    return tuple(_tool(tool) for tool in request.tools or ())


def _tool(tool: CustomTool) -> Tool:
    return Tool(tool.name, tool.description or "", tool.input_schema, strict=tool.strict)


def _user(blocks: list[TextBlock | ToolResultBlock]) -> Iterator[tuple[int, Message]]:
    """Results and text in their order; neighbouring text blocks are one message."""
    texts: list[str] = []
    for index, block in enumerate(blocks):
        if isinstance(block, TextBlock):
            texts.append(block.text)
            continue
        if texts:
            yield index - 1, Message("user", "".join(texts))
            texts = []
        yield index, Message("tool", _result(block), tool_call_id=block.tool_use_id)
    if texts or not blocks:
        yield max(len(blocks) - 1, 0), Message("user", "".join(texts))


def _result(block: ToolResultBlock) -> str:
    """Harmony has no field for a failure: the model reads it in the text."""
    text = "".join(texts_of(block.content))
    return f"Error: {text}" if block.is_error else text


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
