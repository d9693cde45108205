"""Tools that Anthropic knows by type and the client runs: the type implies the schema, which the
model reads as a function's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

Json = dict[str, Any]

KIND: Final = r"^(bash|text_editor|memory)_\d{8}$"
_MATCHES: Final = re.compile(KIND).fullmatch
_LAST_WITH_UNDO: Final = "text_editor_20250124"  # a date: its type sorts as text
_LAST_WITH_NEW_STR: Final = "text_editor_20250429"
_TEXT: Final = {"type": "string"}
_LINE: Final = {"type": "integer", "minimum": 0, "description": "0: at the beginning."}
_RANGE: Final = {
    "type": "array",
    "items": {"type": "integer"},
    "minItems": 2,
    "maxItems": 2,
    "description": "First and last line, from 1; last -1: to the end.",
}

_BASH: Final = """\
Runs a command in a bash session on the user's machine. The session keeps its state between calls; \
`restart` begins a new one."""
_EDITOR: Final = """\
Views, creates and edits text files on the user's machine. `view` shows a file with line numbers, \
or lists a directory. `str_replace` replaces `old_str`, which must occur exactly once in the file. \
`insert` puts text after line `insert_line`."""
_UNDO: Final = " `undo_edit` takes back the last edit of the file."
_MEMORY: Final = """\
Keeps files in the directory /memories, which outlast this conversation. View /memories before a \
task, and record there what later conversations need. `str_replace` replaces `old_str`, which must \
occur exactly once in the file. `insert` puts text after line `insert_line`."""


def is_client_tool(kind: object) -> bool:
    return isinstance(kind, str) and _MATCHES(kind) is not None


def description_of(kind: str) -> str:
    """What the model reads about the tool."""
    if kind.startswith("bash_"):
        return _BASH
    if kind.startswith("memory_"):
        return _MEMORY
    return _EDITOR + (_UNDO if kind <= _LAST_WITH_UNDO else "")


def schema_of(kind: str) -> Json:
    """The input that a client of this type takes."""
    if kind.startswith("bash_"):
        return {"anyOf": [_object({"command": _TEXT}), _object({"restart": {"const": True}})]}
    is_memory = kind.startswith("memory_")
    inserted = "insert_text" if is_memory or kind > _LAST_WITH_NEW_STR else "new_str"
    commands = [
        _command("view", {"path": _TEXT}, {"view_range": _RANGE}),
        _command("create", {"path": _TEXT, "file_text": _TEXT}),
        _command("str_replace", {"path": _TEXT, "old_str": _TEXT, "new_str": _TEXT}),
        _command("insert", {"path": _TEXT, "insert_line": _LINE, inserted: _TEXT}),
    ]
    if is_memory:
        commands.append(_command("delete", {"path": _TEXT}))
        commands.append(_command("rename", {"old_path": _TEXT, "new_path": _TEXT}))
    elif kind <= _LAST_WITH_UNDO:
        commands.append(_command("undo_edit", {"path": _TEXT}))
    return {"anyOf": commands}


def _command(
    name: str, required: Mapping[str, Json], optional: Mapping[str, Json] | None = None
) -> Json:
    return _object({"command": {"const": name}, **required}, optional)


def _object(required: Mapping[str, Json], optional: Mapping[str, Json] | None = None) -> Json:
    return {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": [*required],
        "additionalProperties": False,
    }
