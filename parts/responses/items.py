"""Input items: as they are listed, and as messages of the prompt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from parts.responses.answer.output import item_key
from parts.responses.schemas.compaction import CompactionItem, CompactionTrigger
from parts.responses.schemas.configuration import ConfigurationUpdate
from parts.responses.schemas.items import (
    CodeInterpreterCallItem,
    CustomToolCallItem,
    CustomToolCallOutputItem,
    FunctionCallItem,
    FunctionCallOutputItem,
    InputItem,
    ItemReference,
    MessageItem,
    OutputItem,
    ReplayedReasoning,
    WebSearchCallItem,
    text_of,
)
from parts.responses.tools import items as tools
from service.conversation import MESSAGE_BREAK, Message, ToolCall, qualified_name
from service.errors import RequestError
from service.work import in_loop

Json = dict[str, Any]

_CALLS = {"function_call", "custom_tool_call", *tools.CALLS}
_PREFIXES = {"function_call_output": "fco", "custom_tool_call_output": "ctco"}
_OUTPUTS = {*_PREFIXES, *tools.OUTPUTS}


@dataclass(frozen=True, slots=True)
class HistoryItem:
    """One item in the order of the conversation, and the field that brought it."""

    item: Json
    param: str


def listed(items: str | Sequence[InputItem], response_id: str, field: str = "input") -> list[Json]:
    """The items of a request in the shape of the API's lists, each under an id of its own."""
    key = item_key(response_id)
    if isinstance(items, str):
        items = [MessageItem(role="user", content=items)]
    shown = [_listed(item, f"{key}i{index:04x}") for index, item in enumerate(items)]
    _check_unique(shown, "id", shown, field)
    _check_unique([item for item in shown if item["type"] in _CALLS], "call_id", shown, field)
    outputs = [item for item in shown if item["type"] in _OUTPUTS]
    _check_unique(outputs, "call_id", shown, field)
    return shown


def outputs_of(items: str | Sequence[InputItem]) -> Iterator[object]:
    """What the tools of a request's input answered, and messages, which may hold more of it."""
    for item in () if isinstance(items, str) else items:
        if isinstance(item, OutputItem):
            yield item.output
        elif isinstance(item, MessageItem):
            yield item.content


def _check_unique(items: Sequence[Json], key: str, among: Sequence[Json], field: str) -> None:
    seen: set[str] = set()
    for item in items:
        if item.get(key) in seen:
            param = f"{field}[{_index_of(item, among)}].{key}"
            raise RequestError(
                f"{param} repeats {item[key]!r}; give each item its own.",
                param=param,
                code="duplicate_id",
            )
        if item.get(key) is not None:
            seen.add(item[key])


def _index_of(item: Json, items: Sequence[Json]) -> int:
    return next(index for index, other in enumerate(items) if other is item)


def _listed(item: InputItem, key: str) -> Json:
    match item:
        case MessageItem():
            return {
                "id": item.id or f"msg_{key}",
                "type": "message",
                "status": "completed",
                "role": item.role,
                "content": _parts(item),
                **_given(phase=item.phase),
            }
        case ReplayedReasoning():
            return {
                "id": item.id or f"rs_{key}",
                "type": "reasoning",
                "summary": [part.model_dump() for part in item.summary or ()],
                "content": [part.model_dump() for part in item.content or ()],
                **_given(encrypted_content=item.encrypted_content),
            }
        case FunctionCallItem() | CustomToolCallItem():
            is_function = isinstance(item, FunctionCallItem)
            return {
                "id": item.id or f"{'fc' if is_function else 'ctc'}_{key}",
                "type": item.type,
                "status": "completed",
                "call_id": item.call_id,
                **_given(namespace=item.namespace),
                "name": item.name,
                **_written(item),
            }
        case FunctionCallOutputItem() | CustomToolCallOutputItem():
            return {
                "id": item.id or f"{_PREFIXES[item.type]}_{key}",
                "type": item.type,
                "status": "completed",
                "call_id": item.call_id,
                "output": text_of(item.output),
            }
        case WebSearchCallItem():
            return {**item.model_dump(), "id": item.id or f"ws_{key}", "status": "completed"}
        case CodeInterpreterCallItem():
            return {**item.model_dump(), "id": item.id or f"ci_{key}", "status": "completed"}
        case CompactionItem():
            sealed = item.encrypted_content
            return {"id": item.id or f"cmp_{key}", "type": item.type, "encrypted_content": sealed}
        case CompactionTrigger():
            return {"id": item.id or f"cmpt_{key}", "type": item.type}
        case ConfigurationUpdate():
            written = item.model_dump(by_alias=True, exclude_none=True)
            return {**written, "id": item.id or f"cfg_{key}"}
        case ItemReference():
            return {"id": item.id, "type": "item_reference"}
        case _:
            return tools.listed_item(item, key)


def _given(**fields: str | None) -> Json:
    """Leave out fields that the published schema omits when empty."""
    return {name: value for name, value in fields.items() if value is not None}


def _written(call: FunctionCallItem | CustomToolCallItem) -> Json:
    if isinstance(call, FunctionCallItem):
        return {"arguments": call.arguments}
    return {"input": call.input}


def _parts(item: MessageItem) -> list[Json]:
    if item.role != "assistant":
        return [{"type": "input_text", "text": text_of(item.content)}]
    return [{"type": "output_text", "text": text_of(item.content), "annotations": []}]


async def replay(groups: Iterable[Iterable[HistoryItem]]) -> tuple[list[Message], list[str]]:
    """The messages that these items make in a prompt, and for each the field it came from.

    What an assistant wrote in one go is one message: reasoning, text and calls. A message
    never reaches over the border of a group, which is one request's input or one answer.
    """
    turns = _Turns()
    for group in groups:
        await in_loop(partial(turns.add_group, group))
    return turns.messages, turns.params


class _Turns:
    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.params: list[str] = []
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._calls: list[ToolCall] = []
        self._param = ""

    def add_group(self, group: Iterable[HistoryItem]) -> None:
        """Add the input of one request, or one answer."""
        for entry in group:
            self._add(entry)
        self.close()

    def _add(self, entry: HistoryItem) -> None:
        """Add an item to the assistant's message or begin another message."""
        item = entry.item
        match item["type"]:
            case "reasoning":
                self._part(self._reasoning, item_text(item))
                self._reasoning.append(item_text(item))
                self._param = entry.param
            case "function_call" | "custom_tool_call" as kind:
                is_custom = kind == "custom_tool_call"
                name = qualified_name(item["name"], item.get("namespace"))
                written = item["input" if is_custom else "arguments"]
                self._calls.append(ToolCall(item["call_id"], name, written, is_custom))
                self._param = entry.param
            case "function_call_output" | "custom_tool_call_output":
                result = Message("tool", item["output"], tool_call_id=item["call_id"])
                self._append(result, f"{entry.param}.call_id")
            case "web_search_call" | "code_interpreter_call":
                self._hosted(item, entry.param)
            case kind if kind in tools.KINDS:
                self._step(tools.step_of(item), entry.param)
            case _ if item["role"] == "assistant":
                self._part(self._content, item_text(item))
                self._content.append(item_text(item))
                self._param = entry.param
                # Whatever the assistant wrote behind its final answer belongs to another answer.
                if item.get("phase") == "final_answer":
                    self.close()
            case _:
                self._append(Message(item["role"], item_text(item)), entry.param)

    def _part(self, texts: list[str], text: str) -> None:
        """Begin a new message, unless this text continues after another item of the same answer."""
        if texts and not text.startswith(MESSAGE_BREAK):
            self.close()

    def _hosted(self, item: Json, param: str) -> None:
        """A call that the server ran: with its result it ends the assistant's message."""
        is_code = item["type"] == "code_interpreter_call"
        name = "python" if is_code else item.get("name")
        written = item.get("code" if is_code else "arguments") or ""
        logs = item.get("outputs") if is_code else None
        output = "\n".join(part["logs"] for part in logs) if logs else item.get("output")
        if name is None or output is None:
            return
        self._calls.append(ToolCall(item["id"], name, written))
        self._param = param
        self._append(Message("tool", output, tool_call_id=item["id"]), f"{param}.id")

    def _step(self, step: tools.ToolStep, param: str) -> None:
        if step.call is not None:
            self._calls.append(step.call)
            self._param = param
        if step.result is not None:
            self._append(step.result, f"{param}.call_id")

    def _append(self, message: Message, param: str) -> None:
        self.close()
        self.messages.append(message)
        self.params.append(param)

    def close(self) -> None:
        texts, reasoning, calls = self._content, self._reasoning, self._calls
        if texts or reasoning or calls:
            message = Message("assistant", "".join(texts), "".join(reasoning), tuple(calls))
            self.messages.append(message)
            self.params.append(self._param)
            self._content, self._reasoning, self._calls = [], [], []


def item_text(item: Json) -> str:
    """The text of a message or of reasoning; refusals count as text."""
    return "".join(part.get("text") or part.get("refusal") or "" for part in item["content"])
