"""Token ids to text, in any vocabulary whose tokens spell bytes."""

from __future__ import annotations

import codecs
from collections.abc import Callable

from service.conversation import TextPiece

_UTF8 = codecs.getincrementaldecoder("utf-8")


class TextDecoder:
    """Turns ids into text; holds the bytes of an unfinished character until it is whole."""

    __slots__ = ("_decode_bytes", "_positions", "_utf8", "is_mid_character")

    def __init__(self, decode_bytes: Callable[[int], bytes]) -> None:
        self._decode_bytes = decode_bytes
        self._utf8 = _UTF8("replace")
        self._positions: list[int] = []
        self.is_mid_character = False

    def push(self, token_id: int, position: int) -> TextPiece | None:
        """Take one ordinary token; give the text that is whole now."""
        self._positions.append(position)
        return self._piece(self._utf8.decode(self._decode_bytes(token_id)))

    def flush(self) -> TextPiece | None:
        """Give U+FFFD for a character that will never be whole."""
        return self._piece(self._utf8.decode(b"", final=True))

    def _piece(self, text: str) -> TextPiece | None:
        self.is_mid_character = bool(self._utf8.getstate()[0])
        if not text:
            return None
        piece = text, tuple(self._positions)
        self._positions = []
        return piece
