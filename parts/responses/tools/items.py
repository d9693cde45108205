"""Items of tools with a type of their own, and of other servers' tools: listed, and as the calls
and results that the model reads."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from parts.responses.schemas.tool_items import (
    FOREIGN,
    TOOL_ITEMS,
    AdditionalToolsItem,
    ForeignItem,
    LocalShellCallOutputItem,
    ToolItem,
)
from parts.responses.tools.typed import OF_CALL, OF_OUTPUT
from service.conversation import Message, ToolCall, qualified_name

Json = dict[str, Any]

KINDS: Final = frozenset((*TOOL_ITEMS, *FOREIGN))
CALLS: Final = frozenset(OF_CALL)
OUTPUTS: Final = frozenset(OF_OUTPUT)
_UNREAD: Final = "[image: this model reads text only]"
_ABSENT: Final = "[what it found is not in this history]"
_PREFIXES: Final = {"additional_tools": "at"}
_NO_NAME: Final = re.compile(r"[^A-Za-z0-9_-]+")


def listed_item(item: ToolItem, key: str) -> Json:
    """The item in the shape of the API's lists, under an id of its own."""
    fields = item.model_dump(exclude_unset=True, by_alias=True, exclude={"id", "status"})
    fields = {name: value for name, value in fields.items() if value is not None}
    kind = item.type
    if isinstance(item, ForeignItem):
        return {"id": item.id or f"fi_{key}", **_light(fields)}
    if isinstance(item, AdditionalToolsItem):
        return {"id": item.id or f"at_{key}", "type": kind, "role": "developer", **fields}
    id = item.id
    if isinstance(item, LocalShellCallOutputItem) and item.call_id is None:
        # Its published shape has the call's id as the only one.
        id, fields["call_id"] = None, item.id or ""
    prefix = OF_CALL[kind].prefix if kind in OF_CALL else OF_OUTPUT[kind].prefix + "o"
    return {"id": id or f"{prefix}_{key}", "status": item.status or "completed", **fields}


def _light(fields: Json) -> Json:
    """Without pictures, which no prompt has."""
    if fields["type"] == "image_generation_call":
        return {**fields, "result": None}
    if fields["type"] == "computer_call_output":
        return {**fields, "output": {"type": "computer_screenshot"}}
    return fields


@dataclass(frozen=True, slots=True)
class ToolStep:
    """What an item adds to a prompt: a call of the assistant's, a result, both, or nothing."""

    call: ToolCall | None = None
    result: Message | None = None


def step_of(item: Json) -> ToolStep:
    """The step of an item as it is listed."""
    kind = item["type"]
    call_id = item.get("call_id")
    if kind in _OTHERS:
        return _OTHERS[kind](item)
    if call_id is None:  # arrived tools; or a search that another server made for itself
        return ToolStep()
    if tool := OF_CALL.get(kind):
        return ToolStep(ToolCall(call_id, tool.type, tool.written(item)))
    return _result(call_id, OF_OUTPUT[kind].told(item)) if kind in OF_OUTPUT else ToolStep()


def _result(call_id: str, text: str) -> ToolStep:
    return ToolStep(result=Message("tool", text, tool_call_id=call_id))


def _done(item: Json, name: str, arguments: Any, result: str) -> ToolStep:
    """A call that another server ran."""
    call = ToolCall(item["id"], name, arguments if isinstance(arguments, str) else _json(arguments))
    return ToolStep(call, Message("tool", result, tool_call_id=item["id"]))


def _file_search(item: Json) -> ToolStep:
    found = item.get("results")
    texts = [_text(each, "filename", "text") for each in found] if isinstance(found, list) else []
    queries = {"queries": item.get("queries") or []}
    return _done(item, "file_search", queries, "\n\n".join(filter(None, texts)) or _ABSENT)


def _text(value: Any, *names: str) -> str:
    fields = value if isinstance(value, dict) else {}
    return "\n".join(fields[name] for name in names if isinstance(fields.get(name), str))


def _image(item: Json) -> ToolStep:
    return _done(item, "image_generation", {"prompt": item.get("revised_prompt") or ""}, _UNREAD)


def _mcp(item: Json) -> ToolStep:
    name, label = _name(item.get("name")), _name(item.get("server_label"))
    written = item.get("arguments") or "{}"
    if name == label == "python":  # the built-in tool, which reads code
        written = _text(_object(written), "code")
    else:
        name = qualified_name(name, label)
    output, error = item.get("output"), item.get("error")
    if not isinstance(output, str):
        told = error if isinstance(error, str) else _text(error, "message", "content")
        output = f"Error: {told}" if error else _ABSENT
    return _done(item, name, written, output)


def _object(written: Any) -> Any:
    try:
        return json.loads(written)
    except (TypeError, ValueError, RecursionError):
        return None


def _name(value: Any) -> str:
    return _NO_NAME.sub("_", str(value or ""))[:64] or "unknown"


def _computer(item: Json) -> ToolStep:
    done = item.get("actions") or item.get("action") or {}
    return ToolStep(ToolCall(str(item.get("call_id") or item["id"]), "computer", _json(done)))


def _program(item: Json) -> ToolStep:
    code = {"code": item.get("code") or ""}
    return ToolStep(ToolCall(str(item.get("call_id") or item["id"]), "program", _json(code)))


def _nothing(_: Json) -> ToolStep:
    return ToolStep()


_OTHERS: Final[dict[str, Callable[[Json], ToolStep]]] = {
    "computer_call": _computer,
    "computer_call_output": lambda item: _result(str(item.get("call_id")), _UNREAD),
    "file_search_call": _file_search,
    "image_generation_call": _image,
    "mcp_approval_request": _nothing,
    "mcp_approval_response": _nothing,
    "mcp_call": _mcp,
    "mcp_list_tools": _nothing,
    "program": _program,
    "program_output": lambda item: _result(str(item.get("call_id")), str(item.get("result") or "")),
}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
