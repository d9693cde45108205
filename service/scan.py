"""What a JSON text is made of, counted in its bytes before anybody parses it."""

from __future__ import annotations

import asyncio
from typing import Final

from service.work import Budget

MAX_VALUES: Final = 262_144  # of any kind; a prompt of token ids has one for each
MAX_OBJECTS: Final = 16_384  # objects and lists
MAX_KEYS: Final = 32_768
MAX_ESCAPES: Final = 524_288  # in strings; each costs more than sixty plain letters
_PIECE_BYTES: Final = 65_536  # scanned in less than a millisecond


class JsonScan:
    """Counts what a JSON text is made of, as its bytes come, without parsing it.

    Exact for every valid JSON text: the content of strings does not count.
    """

    def __init__(self, max_objects: int = MAX_OBJECTS) -> None:
        self.objects = Budget(max_objects, "objects and lists")
        self.keys = Budget(MAX_KEYS, "keys")
        self.values = Budget(MAX_VALUES, "values")  # a comma stands before all but the first
        self.escapes = Budget(MAX_ESCAPES, "characters written with a backslash")
        self._is_in_string = False
        self._rest = b""  # a backslash whose character has not come yet

    async def feed(self, data: bytes) -> None:
        """Count more bytes, leaving the loop between pieces; raises OverBudget."""
        for start in range(0, len(data), _PIECE_BYTES):
            if start:
                await asyncio.sleep(0)
            self.count(data[start : start + _PIECE_BYTES])

    def count(self, piece: bytes) -> None:
        """Count one piece of bytes; raises OverBudget when there is too much of anything."""
        outside = self._outside_strings(piece)
        num_objects = outside.count(b"{") + outside.count(b"[")
        self.objects.spend(num_objects)
        self.keys.spend(outside.count(b":"))
        self.values.spend(num_objects + outside.count(b","))

    def _outside_strings(self, piece: bytes) -> bytes:
        data = self._rest + piece
        single = data.replace(b"\\\\", b"")
        self._rest = b"\\" if single.endswith(b"\\") else b""
        single = single.removesuffix(b"\\")
        self.escapes.spend((len(data) - len(self._rest) - len(single)) // 2 + single.count(b"\\"))
        parts = single.replace(b'\\"', b"").split(b'"')
        outside = b"".join(parts[self._is_in_string :: 2])
        self._is_in_string ^= len(parts) % 2 == 0
        return outside
