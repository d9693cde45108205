"""Heads without the header Upgrade.

A server may ignore that wish (RFC 9110 §7.8), but httptools would drop the body. Java's client
sends it with the first request of a connection. The header gets a name of the same length.
"""

from __future__ import annotations

import re
from typing import Final

IGNORED: Final = b"ignored"  # what the header Upgrade is called from here on
_NAME: Final = b"\r\nupgrade:"
_UPGRADE: Final = re.compile(_NAME, re.IGNORECASE)
_END: Final = b"\r\n\r\n"


class UpgradeFilter:
    """Renames the header in the heads of one connection, whose bytes come in pieces."""

    def __init__(self) -> None:
        self._held = b""  # the end of a piece, if the header may begin with it
        self._passed = b""  # the last three bytes that were handed on

    def head(self, data: bytes) -> bytes:
        """A piece of a head without the header; what may be its beginning waits for the rest."""
        data, self._held = self._held + data, b""
        is_whole = _END in self._passed + data
        data = _renamed(data)
        if not is_whole and (num := _num_begun(data[-len(_NAME) :].lower())):
            data, self._held = data[:-num], data[-num:]
        return self.body(data)

    def body(self, data: bytes) -> bytes:
        """The piece as it is; a head may begin behind it."""
        self._passed = (self._passed + data)[-3:]
        return data


def _renamed(data: bytes) -> bytes:
    end = data.find(_END)
    found = _UPGRADE.search(data, 0, len(data) if end < 0 else end)
    if found is None:
        return data
    return data[: found.start()] + b"\r\n" + IGNORED + b":" + data[found.end() :]


def _num_begun(end: bytes) -> int:
    """How many bytes at the end may be the beginning of the header."""
    return next((n for n in range(len(end), 0, -1) if _NAME.startswith(end[-n:])), 0)
