"""Tools with a type of their own, and what a model writes to call them."""

from __future__ import annotations

from typing import Any

FINAL = "<|channel|>final<|message|>Done.<|return|>"
SHELL = {"type": "shell", "environment": {"type": "local"}}
PATCH = {"type": "apply_patch"}
SEARCH = {
    "type": "tool_search",
    "execution": "client",
    "description": "Find tools of the office.",
    "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
}
WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
MAIL = {
    "type": "namespace",
    "name": "mail",
    "description": "Letters.",
    "tools": [{"type": "function", "name": "send", "defer_loading": True, "parameters": {}}],
}
SHELL_WRITTEN = '{"commands":["ls -la","pwd"],"timeout_ms":900}'
PATCH_WRITTEN = '{"type":"update_file","path":"a.py","diff":"@@\\n-x\\n+é"}'


def call(name: str, arguments: str) -> str:
    return (
        f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}<|call|>"
    )


def found(*tools: Any) -> list[Any]:
    head = {"call_id": "s", "execution": "client", "status": "completed"}
    return [
        {"role": "user", "content": "Hi"},
        {"type": "tool_search_call", "arguments": {"query": "x"}, **head},
        {"type": "tool_search_output", "tools": [*tools], **head},
    ]
