"""Anthropic's turns and blocks → the conversation that the renderer takes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from parts.messages.block_schema import (
    AssistantTurn,
    ChangedTool,
    ClientTool,
    CompactionBlock,
    DefinedTool,
    RedactedThinkingBlock,
    SystemTurn,
    TextBlock,
    ThinkingBlock,
    ToolAddition,
    ToolReference,
    ToolRemoval,
    ToolResultBlock,
    ToolUseBlock,
    UserTurn,
    text_of,
    texts_of,
)
from parts.messages.schema import ClearThinking, CountTokensRequest
from parts.messages.server_tools import (
    ServerResultBlock,
    ServerToolUseBlock,
    SilentBlock,
    call_of,
    finds_tools,
    found_tools,
    result_text,
)
from service.api.common.foreign import ForeignPart
from service.chat_format import ChatFormat
from service.conversation import (
    Conversation,
    Message,
    ReasoningEffort,
    ResponseFormat,
    Tool,
    ToolCall,
)
from service.errors import RequestError
from service.roster import Roster, found_text
from service.work import rest


class MessageHistory:
    """The messages of a request, and which field each one came from."""

    def __init__(self, request: CountTokensRequest, format: ChatFormat) -> None:
        self.messages: list[Message] = []
        self.cleared: dict[int, str] = {}  # thoughts that the prompt would have had, by message
        # The last compaction block: before which message it is, and its place in the request.
        self.compacted: tuple[int, CompactionBlock, str] | None = None
        self._params: list[str] = []
        self._call_ids: set[str] = set()
        for text in texts_of(request.system):
            self._add("system", Message("system", text))
        for index, turn in enumerate(request.messages):
            rest()
            self._add_turn(f"messages[{index}]", turn)
        self._clear_thinking(request, format)
        is_forced = request.tool_choice is not None and request.tool_choice.type in ("any", "tool")
        is_summary = getattr(request, "compaction", None) is not None
        is_last = bool(request.messages) and isinstance(request.messages[-1], AssistantTurn)
        if is_last and not (is_forced or is_summary):
            raise RequestError(
                "The last message is the assistant's; prefilled answers are not supported. End "
                "with a user message, or force a call with tool_choice.",
                param=f"messages[{len(request.messages) - 1}]",
                code="unsupported_value",
            )

    def param_of(self, index: int) -> str:
        """The field that names the call which message `index` answers."""
        return f"{self._params[index]}.tool_use_id"

    def replace_before(self, place: int, messages: Sequence[Message], param: str) -> None:
        """Put these in the place of all messages before one, except instructions."""
        kept = [i for i in range(place) if self.messages[i].role == "system"]
        before = [self.messages[i] for i in kept]
        params = [self._params[i] for i in kept]
        self.messages = [*before, *messages, *self.messages[place:]]
        self._params = [*params, *[param] * len(messages), *self._params[place:]]
        self.cleared = {}

    def _clear_thinking(self, request: CountTokensRequest, format: ChatFormat) -> None:
        edits = request.context_management.edits if request.context_management else None
        clearing = [edit for edit in edits or () if isinstance(edit, ClearThinking)]
        limits = [edit.num_kept for edit in clearing if edit.num_kept is not None]
        if not limits:
            return
        thoughtful = [i for i, message in enumerate(self.messages) if message.reasoning]
        first = format.first_reasoning(self.messages)  # before it there are none in any prompt
        # As if the edits ran one after the other, the one that keeps fewest turns counts.
        for index in thoughtful[: -min(limits)]:
            if index >= first:
                self.cleared[index] = self.messages[index].reasoning
            self.messages[index] = replace(self.messages[index], reasoning="")

    def _add(self, param: str, message: Message) -> None:
        self.messages.append(message)
        self._params.append(param)

    def _add_turn(self, param: str, turn: SystemTurn | UserTurn | AssistantTurn) -> None:
        if isinstance(turn, AssistantTurn):
            self._add_assistant(param, turn)
        elif isinstance(turn, SystemTurn):
            self._add(param, Message("system", "\n\n".join(texts_of(turn.content))))
        elif isinstance(turn.content, str):
            self._add(param, Message("user", turn.content))
        else:
            for place, message in _user(turn.content):
                self._add(f"{param}.content[{place}]", message)

    def _add_assistant(self, param: str, turn: AssistantTurn) -> None:
        """Its thoughts, its text and its calls are one message, as on the chat route; a result of a
        server's tool ends it, and what follows is another."""
        if isinstance(turn.content, str):
            self._add(param, Message("assistant", turn.content))
            return
        own: list[_OwnBlock] = []
        for index, block in enumerate(turn.content):
            place = f"{param}.content[{index}]"
            if isinstance(block, ToolUseBlock | ServerToolUseBlock):
                self._check_id(block.id, f"{place}.id")
            if isinstance(block, CompactionBlock):
                if block.content or block.encrypted_content:
                    self.compacted = len(self.messages), block, place
                continue
            if not isinstance(block, ServerResultBlock):
                own.append(block)
                continue
            if own:
                self._add(param, _own_message(own))
            own = []
            # A result whose call was cut out of the history answers nothing.
            if block.tool_use_id in self._call_ids:
                result = Message("tool", result_text(block), tool_call_id=block.tool_use_id)
                self._add(place, result)
        if own or not turn.content:
            self._add(param, _own_message(own))

    def _check_id(self, id: str, param: str) -> None:
        if id in self._call_ids:
            message = f"{param} repeats {id!r}; give each tool_use its own id."
            raise RequestError(message, param=param)
        self._call_ids.add(id)


_OwnBlock = (
    TextBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | ToolUseBlock
    | ServerToolUseBlock
    | SilentBlock
)


def _own_message(blocks: list[_OwnBlock]) -> Message:
    calls: list[ToolCall] = []
    for block in blocks:
        if isinstance(block, ToolUseBlock):
            calls.append(ToolCall(block.id, block.name, _json(block.input)))
        elif isinstance(block, ServerToolUseBlock):
            calls.append(call_of(block))
    return Message(
        "assistant",
        "".join(block.text for block in blocks if isinstance(block, TextBlock)),
        reasoning="".join(b.thoughts for b in blocks if isinstance(b, ThinkingBlock)),
        tool_calls=tuple(calls),
    )


def to_conversation(
    request: CountTokensRequest,
    history: MessageHistory,
    date: str,
    effort: ReasoningEffort,
    builtins: tuple[str, ...],
) -> Conversation:
    is_hidden = request.tool_choice is not None and request.tool_choice.type == "none"
    return Conversation(
        messages=tuple(history.messages),
        current_date=date,
        tools=() if is_hidden else tools_of(request),
        reasoning_effort=effort,
        response_format=_described_format(request),
        builtins=builtins,
    )


def _described_format(request: CountTokensRequest) -> ResponseFormat | None:
    config = request.output_config
    return ResponseFormat(config.format.schema_) if config and config.format else None


def tools_of(request: CountTokensRequest) -> tuple[Tool, ...]:
    """The offered tools; raises RequestError for a name that comes twice.

    A deferred tool is offered once a message adds it or a tool's result refers to it.
    """
    _check_names(request)
    roster: Roster[Tool] = Roster()
    is_all = finds_tools(request.tools or ())
    for index, tool in enumerate(request.tools or ()):
        if isinstance(tool, ClientTool):
            take = roster.defer if tool.defer_loading and not is_all else roster.offer
            take(_tool(tool, f"tools[{index}].input_schema"))
    for change in _tool_changes(request):
        match change:
            case ToolAddition(tool=DefinedTool(definition=tool)):
                roster.offer(_tool(tool, "messages"))
            case ToolAddition(tool=ChangedTool(name=name)) | ToolReference(tool_name=name):
                roster.find(name)
            case ServerResultBlock():
                for name in found_tools(change):
                    roster.find(name)
            case ToolRemoval(tool=ChangedTool(name=name)):
                roster.remove(name)
    return roster.offered


def _tool_changes(
    request: CountTokensRequest,
) -> Iterator[ToolAddition | ToolRemoval | ToolReference | ServerResultBlock]:
    """Tool additions, removals and references in the history, in order."""
    for turn in request.messages:
        if isinstance(turn.content, str):
            continue
        for block in turn.content:
            if isinstance(block, ToolAddition | ToolRemoval | ServerResultBlock):
                yield block
            elif isinstance(block, ToolResultBlock) and not isinstance(block.content, str):
                yield from (b for b in block.content or () if isinstance(b, ToolReference))


def _check_names(request: CountTokensRequest) -> None:
    seen: set[str] = set()
    for index, tool in enumerate(request.tools or ()):
        if tool.name in seen:
            raise RequestError(
                f"tools[{index}].name repeats {tool.name!r}; give each tool its own name.",
                param=f"tools[{index}].name",
            )
        seen.add(tool.name)


def _tool(tool: ClientTool, field: str) -> Tool:
    return Tool(tool.name, tool.description or "", tool.input_schema, tool.strict, field=field)


def _user(blocks: list[TextBlock | ToolResultBlock | ForeignPart]) -> Iterator[tuple[int, Message]]:
    """Results and text in their order; neighbouring text blocks are one message."""
    texts: list[TextBlock | ForeignPart] = []
    for index, block in enumerate(blocks):
        if not isinstance(block, ToolResultBlock):
            texts.append(block)
            continue
        if texts:
            yield index - 1, Message("user", text_of(texts))
            texts = []
        yield index, Message("tool", _result(block), tool_call_id=block.tool_use_id)
    if texts or not blocks:
        yield max(len(blocks) - 1, 0), Message("user", text_of(texts))


def results_of(request: CountTokensRequest) -> Iterator[object]:
    """What the tools of the history answered, and users' messages, which may hold more of it."""
    for turn in request.messages:
        if isinstance(turn, UserTurn) and not isinstance(turn.content, str):
            yield turn.content
            yield from (b.content for b in turn.content if isinstance(b, ToolResultBlock))


def _result(block: ToolResultBlock) -> str:
    """No chat format has a field for a failure: the model reads it in the text."""
    text = text_of(block.content) + _found(block)
    return f"Error: {text}" if block.is_error else text


def _found(block: ToolResultBlock) -> str:
    """The model's description of the tools that a search found."""
    if block.content is None or isinstance(block.content, str):
        return ""
    return found_text(p.tool_name for p in block.content if isinstance(p, ToolReference))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
