"""OpenAI's input as what questions are about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from parts.decisions import wording
from parts.decisions.schema import (
    Content,
    DecisionCall,
    DecisionCustomCall,
    DecisionJson,
    DecisionMessage,
    DecisionRefusal,
    Item,
    Part,
)
from service.conversation import Message, ToolCall, qualified_name
from service.decisions import Material
from service.work import rest

_HEAD: Final = Message("developer", wording.HEAD)


def material_of(given: str | Sequence[Item]) -> Material:
    if isinstance(given, str):
        return text_material(given, "input")
    messages, params = [_HEAD], ["input"]
    for at, item in enumerate(given):
        messages.append(_message(item))
        params.append(f"input[{at}].call_id")
        rest()
    return Material(tuple(messages), tuple(params))


def text_material(text: str, param: str) -> Material:
    return Material((_HEAD, Message("user", text)), (param, param))


def _message(item: Item) -> Message:
    if isinstance(item, DecisionMessage):
        return Message(item.role, content_text(item.content))
    if isinstance(item, DecisionCall):
        return _call(item, item.arguments, is_custom=False)
    if isinstance(item, DecisionCustomCall):
        return _call(item, item.input, is_custom=True)
    return Message("tool", content_text(item.output), tool_call_id=item.call_id)


def _call(item: DecisionCall | DecisionCustomCall, written: str, *, is_custom: bool) -> Message:
    name = qualified_name(item.name, item.namespace)
    call = ToolCall(item.call_id, name, written, is_custom=is_custom)
    return Message("assistant", tool_calls=(call,))


def content_text(content: Content) -> str:
    """The parts end to end."""
    return content if isinstance(content, str) else "".join(map(_part_text, content))


def _part_text(part: Part) -> str:
    if isinstance(part, DecisionJson):
        return wording.as_text(part.data)
    return part.refusal if isinstance(part, DecisionRefusal) else part.text
