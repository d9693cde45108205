"""Long texts encoded piece by piece: the library keeps the interpreter while it encodes one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from service.harmony.turns import count_tokens, rest

PIECE_CHARS = 8192  # encoded in about a millisecond
MOST_CHARS = 2 * PIECE_CHARS

# Between these characters the vocabulary's own pattern always ends one word and begins the
# next, and it never looks back: the ids of the parts are the ids of the whole.
_LETTER = r"[A-Za-z0-9\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fff\uac00-\ud7a3]"
_SAFE_CUT = re.compile(
    rf"\S(?=[ \t])|{_LETTER}(?=[\n\r!\"#$%&()*+,\-./:;<=>?@\[\\\]^_`{{|}}~\u3001\u3002\uff0c])"
)


def encode_pieces(text: str, encode: Callable[[str], list[int]]) -> list[int]:
    """The ids of a text of any length; within in_turns with pauses for the others."""
    token_ids: list[int] = []
    for piece in pieces(text):
        found = encode(piece)
        count_tokens(len(found))
        token_ids += found
        rest()
    return token_ids


def pieces(text: str) -> Iterator[str]:
    """Cut a text where that does not change its ids.

    What has no such place within MOST_CHARS is cut all the same: only the tokens on both sides
    may then differ from those of the whole.
    """
    start = 0
    while len(text) - start > PIECE_CHARS:
        most = min(start + MOST_CHARS, len(text))
        cut = _SAFE_CUT.search(text, start + PIECE_CHARS, most)
        end = cut.end() if cut else most
        yield text[start:end]
        start = end
    if start < len(text) or not text:
        yield text[start:]
