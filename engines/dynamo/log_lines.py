"""The log lines of Dynamo's library, which writes them past Python's logging."""

from __future__ import annotations

from typing import Final

import msgspec

_OF_REQUESTS: Final = "request_span"  # two lines for each, whatever DYN_LOG says
_LEVELS: Final = {"WARN": "WARNING"}


class _Line(msgspec.Struct, frozen=True):
    level: str
    target: str
    message: str = ""


_read: Final = msgspec.json.Decoder(_Line).decode


def as_ours(line: str) -> str | None:
    """A line of the process's log as one of ours; None for what is written of each request."""
    if not line.startswith("{"):
        return line
    try:
        found = _read(line)
    except msgspec.DecodeError:
        return line
    if found.target == _OF_REQUESTS:
        return None
    return f"{_LEVELS.get(found.level, found.level)} {found.target}: {found.message}"
