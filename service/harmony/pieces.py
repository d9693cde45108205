"""Long texts encoded piece by piece, so that one client's prompt holds up nobody else's stream.

The library keeps the interpreter for as long as it encodes: half a second for a megabyte.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

PIECE_CHARS = 8192  # encoded in about a millisecond

# Between these characters the vocabulary's own pattern always ends one word and begins the
# next, and it never looks back: the ids of the parts are the ids of the whole.
_LETTER = r"[A-Za-z0-9\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fff\uac00-\ud7a3]"
_SAFE_CUT = re.compile(
    rf"\S(?=[ \t])|{_LETTER}(?=[\n\r!\"#$%&()*+,\-./:;<=>?@\[\\\]^_`{{|}}~\u3001\u3002\uff0c])"
)

_takes_turns: ContextVar[bool] = ContextVar("takes_turns", default=False)
# One for all prompts: their pieces take turns, however many prompts are being encoded.
_lane = ThreadPoolExecutor(1, thread_name_prefix="encode")


def in_turns(work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Do work in this thread, which is not the event loop's, leaving the loop half of the time."""
    token = _takes_turns.set(True)
    try:
        return work(*args, **kwargs)
    finally:
        _takes_turns.reset(token)


def encode_pieces(text: str, encode: Callable[[str], list[int]]) -> list[int]:
    """The ids of a text of any length; within in_turns with pauses for the others."""
    if len(text) <= PIECE_CHARS:
        return encode(text)
    token_ids: list[int] = []
    for piece in pieces(text):
        if _takes_turns.get():
            token_ids += _lane.submit(_encode_and_rest, encode, piece).result()
        else:
            token_ids += encode(piece)
    return token_ids


def pieces(text: str) -> Iterator[str]:
    """Cut a text where that does not change its ids; where it cannot be cut, the rest is whole."""
    start = 0
    while len(text) - start > PIECE_CHARS:
        cut = _SAFE_CUT.search(text, start + PIECE_CHARS)
        if cut is None:
            break
        yield text[start : cut.end()]
        start = cut.end()
    yield text[start:]


def _encode_and_rest(encode: Callable[[str], list[int]], piece: str) -> list[int]:
    started_at = time.perf_counter()
    token_ids = encode(piece)
    time.sleep(time.perf_counter() - started_at)
    return token_ids
