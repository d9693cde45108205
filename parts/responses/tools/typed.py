"""Tools that the API knows by a type of their own: functions to the model, own items to the client.

The model reads a function's schema, and its arguments are what the call's item holds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic_core import from_json

from service.conversation import qualified_name
from service.roster import found_text

Json = dict[str, Any]
_Reads = Callable[[Json], Json]


# What a name of the model's is to the client, beside functions and custom tools.
NAMESPACE: Final = "namespace"
MCP: Final = "mcp"


@dataclass(frozen=True, slots=True)
class TypedTool:
    """One of them; its type is its name for the model."""

    type: str
    prefix: str  # of the ids of its calls
    output_type: str
    fields: Callable[[Any], Json]  # the arguments → the fields of the call's item
    arguments: Callable[[Json], Any]  # the call's item → the arguments
    told: Callable[[Json], str]  # the output's item → what the model reads
    description: str = ""
    parameters: Mapping[str, Any] | None = None

    @property
    def call_type(self) -> str:
        return f"{self.type}_call"

    def fields_of(self, written: str) -> Json:
        """The fields of a call's item, of what the model wrote: it may be cut off."""
        try:
            return self.fields(from_json(written or "{}", allow_partial=True))
        except ValueError:
            return self.fields(written)

    def written(self, item: Json) -> str:
        """What the model wrote to make this call."""
        return json.dumps(self.arguments(item), ensure_ascii=False, separators=(",", ":"))


def _given(fields: Mapping[str, Any], *names: str) -> Json:
    return {name: fields[name] for name in names if fields.get(name) is not None}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _texts(value: Any) -> list[str]:
    return [str(text) for text in value] if isinstance(value, list) else []


def _number(value: Any) -> int | None:
    return value if type(value) is int else None


# shell


def _shell_fields(arguments: Any) -> Json:
    given = _mapping(arguments)
    action = {
        "commands": _texts(given.get("commands")),
        "timeout_ms": _number(given.get("timeout_ms")),
        "max_output_length": _number(given.get("max_output_length")),
    }
    return {"action": action, "environment": {"type": "local"}}


def _shell_arguments(item: Json) -> Json:
    return _given(item["action"], "commands", "timeout_ms", "max_output_length")


def _shell_told(item: Json) -> str:
    """What each command printed, and how it ended if not well."""
    output = item["output"]
    return output if isinstance(output, str) else "\n".join(map(_chunk_text, output))


def _chunk_text(chunk: Json) -> str:
    outcome = chunk["outcome"]
    end = f"exit code {outcome.get('exit_code')}" if outcome["type"] == "exit" else "timed out"
    parts = [chunk["stdout"].rstrip("\n"), chunk["stderr"].rstrip("\n")]
    if outcome.get("exit_code") != 0:
        parts.append(f"[{end}]")
    return "\n".join(filter(None, parts)) or f"[{end}]"


_MILLISECONDS: Final = {"type": "integer", "description": "Timeout in milliseconds.", "minimum": 1}
SHELL: Final = TypedTool(
    "shell",
    "sh",
    "shell_call_output",
    _shell_fields,
    _shell_arguments,
    _shell_told,
    "Runs commands in a shell on the user's machine, one after the other.",
    {
        "type": "object",
        "properties": {
            "commands": {"type": "array", "items": {"type": "string"}, "minItems": 1},
            "timeout_ms": _MILLISECONDS,
            "max_output_length": {
                "type": "integer",
                "description": "Most characters of output to return.",
                "minimum": 1,
            },
        },
        "required": ["commands"],
        "additionalProperties": False,
    },
)


# local_shell


def _local_fields(arguments: Any) -> Json:
    given = _mapping(arguments)
    folder = given.get("working_directory")
    action: Json = {
        "type": "exec",
        "command": _texts(given.get("command")),
        "env": {},
        "timeout_ms": _number(given.get("timeout_ms")),
        "user": None,
        "working_directory": folder if isinstance(folder, str) else None,
    }
    return {"action": action}


def _local_arguments(item: Json) -> Json:
    return _given(item["action"], "command", "working_directory", "timeout_ms")


LOCAL_SHELL: Final = TypedTool(
    "local_shell",
    "lsh",
    "local_shell_call_output",
    _local_fields,
    _local_arguments,
    lambda item: str(item["output"]),
    "Runs one command on the user's machine.",
    {
        "type": "object",
        "properties": {
            "command": {
                "type": "array",
                "description": "The program and its arguments.",
                "items": {"type": "string"},
                "minItems": 1,
            },
            "working_directory": {"type": "string"},
            "timeout_ms": _MILLISECONDS,
        },
        "required": ["command"],
        "additionalProperties": False,
    },
)


# apply_patch

_HAVE_DIFF: Final = ("create_file", "update_file")


def _patch_fields(arguments: Any) -> Json:
    given = _mapping(arguments)
    kind = given.get("type")
    kind = kind if kind in (*_HAVE_DIFF, "delete_file") else "update_file"
    operation = {"type": kind, "path": str(given.get("path") or "")}
    if kind in _HAVE_DIFF:
        operation["diff"] = str(given.get("diff") or "")
    return {"operation": operation}


def _patch_told(item: Json) -> str:
    return item.get("output") or f"[{item['status']}]"


def _operation(*kinds: str, **more: Json) -> Json:
    properties = {"type": {"type": "string", "enum": [*kinds]}, "path": {"type": "string"}, **more}
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


APPLY_PATCH: Final = TypedTool(
    "apply_patch",
    "apc",
    "apply_patch_call_output",
    _patch_fields,
    lambda item: _given(item["operation"], "type", "path", "diff"),
    _patch_told,
    """\
Creates, changes or deletes one file on the user's machine.
The diff of a new file is its lines, each after a `+`.
The diff of a change has, for each place, a line `@@`, optionally with the function or class that \
it is in, then lines after a space (they stay), a `-` (they go) or a `+` (they come), with three \
lines around each change that stay. It has no line numbers.""",
    {"anyOf": [_operation(*_HAVE_DIFF, diff={"type": "string"}), _operation("delete_file")]},
)


# tool_search: its description and parameters are the client's


def _search_told(item: Json) -> str:
    return found_text(tool_names(item["tools"])) or "No tools were found."


def tool_names(tools: Iterable[Json]) -> list[str]:
    """The qualified names of the tools in a list of the API."""
    names: list[str] = []
    for tool in tools:
        if tool["type"] == "namespace":
            names += [qualified_name(inner["name"], tool["name"]) for inner in tool["tools"]]
        elif tool["type"] in ("function", "custom"):
            names.append(tool["name"])
        elif tool["type"] in TYPED:
            names.append(tool["type"])
    return names


TOOL_SEARCH: Final = TypedTool(
    "tool_search",
    "tsc",
    "tool_search_output",
    lambda arguments: {"execution": "client", "arguments": arguments},
    lambda item: item["arguments"],
    _search_told,
    "Searches for tools that can be called then.",
    {
        "type": "object",
        "properties": {"query": {"type": "string"}},
        "required": ["query"],
        "additionalProperties": False,
    },
)

TYPED: Final = {tool.type: tool for tool in (SHELL, LOCAL_SHELL, APPLY_PATCH, TOOL_SEARCH)}
OF_CALL: Final = {tool.call_type: tool for tool in TYPED.values()}
OF_OUTPUT: Final = {tool.output_type: tool for tool in TYPED.values()}
