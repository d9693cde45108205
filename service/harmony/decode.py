"""Token ids to text, character by character though tokens may split one."""

from __future__ import annotations

import codecs

from service.harmony.header import Piece
from service.harmony.vocabulary import decode_bytes

_UTF8 = codecs.getincrementaldecoder("utf-8")


class TokenDecoder:
    """Holds the bytes of an unfinished character until its last token has come."""

    __slots__ = ("_positions", "_utf8", "is_mid_character")

    def __init__(self) -> None:
        self._utf8 = _UTF8("replace")
        self._positions: list[int] = []
        self.is_mid_character = False

    def push(self, token_id: int, position: int) -> Piece | None:
        """Take one ordinary token; give what text is whole now."""
        self._positions.append(position)
        return self._piece(self._utf8.decode(decode_bytes(token_id)))

    def flush(self) -> Piece | None:
        """Give U+FFFD for a character that will never be whole."""
        return self._piece(self._utf8.decode(b"", final=True))

    def _piece(self, text: str) -> Piece | None:
        self.is_mid_character = bool(self._utf8.getstate()[0])
        if not text:
            return None
        piece = text, tuple(self._positions)
        self._positions = []
        return piece
