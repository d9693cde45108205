"""The log lines of Dynamo's library, which writes them past Python's logging."""

from __future__ import annotations

from typing import Final

import msgspec

from engines.lines_per_address import LinesPerAddress, left_out

_OF_REQUESTS: Final = "request_span"  # two lines for each, whatever DYN_LOG says
_LEVELS: Final = {"WARN": "WARNING"}


class _Line(msgspec.Struct, frozen=True):
    level: str
    target: str
    message: str = ""


# Its ports take connections of anyone: what each of its modules has to say is bounded, as its lines
# name no address.
_lines: Final = LinesPerAddress()
_read: Final = msgspec.json.Decoder(_Line).decode


def as_ours(line: str) -> str | None:
    """A line of the process's log as one of ours; None for what is written of each request, and for
    what a module repeats."""
    if not line.startswith("{"):
        return line
    try:
        found = _read(line)
    except msgspec.DecodeError:
        return line
    if found.target == _OF_REQUESTS:
        return None
    num_left_out = _lines.take(found.target)
    if num_left_out is None:
        return None
    level = _LEVELS.get(found.level, found.level)
    return f"{level} {found.target}: {found.message}{left_out(num_left_out)}"
