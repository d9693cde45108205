"""Tools as others describe them: what a developer offers nano first (`others.yaml`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from service.conversation import Conversation, Message, Tool
from tools.nano import replies
from tools.nano.dialogues import Turn
from tools.nano.requests import Request

_DATE = "2026-01-31"


def other_turns() -> list[Turn]:
    """Return a turn for each tool: the request, and the call that it should get."""
    entries = yaml.safe_load(Path(__file__).with_name("others.yaml").read_text())
    return [_turn(entry) for entry in entries]


def _turn(entry: dict[str, Any]) -> Turn:
    said, name, arguments = entry["request"], entry["name"], entry["arguments"]
    prompt = Conversation((Message("user", said),), _DATE, (_tool(entry),))
    reply = replies.call(name, arguments, said, prompt.reasoning_effort)
    return Turn("other", prompt, tuple(reply), request=Request(said, name, arguments))


def _tool(entry: dict[str, Any]) -> Tool:
    properties, required = {}, []
    for name, told in entry["parameters"].items():
        schema = dict(told) if isinstance(told, dict) else {"type": "string", "description": told}
        if not schema.pop("optional", False):
            required.append(name)
        properties[name] = schema
    schema = {"type": "object", "properties": properties, "required": required}
    return Tool(entry["name"], entry.get("says", ""), schema)
