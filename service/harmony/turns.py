"""Long work on one client's prompt, done in a thread so that it holds up nobody else's stream.

A thread alone would not do: the interpreter runs one of them at a time, and whoever computes
keeps it for milliseconds. So of all that work here one at a time does, for a millisecond, and
then rests for as long as it worked: the event loop has half of the time, however many prompts
are being written. Texts are encoded in pieces for the same reason: the library keeps the
interpreter while it encodes one.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from service.budget import Budget

R = TypeVar("R")

_WORK_S: Final = 0.001
_HANDOVER_S: Final = 0.0002  # for the next to take its turn

# Most of them wait for their turn: nobody's prompt waits for another's to be whole.
_threads: Final = ThreadPoolExecutor(32, thread_name_prefix="prompt")
_turn = threading.Lock()

PIECE_CHARS = 8192  # encoded in about a millisecond
MOST_CHARS = 2 * PIECE_CHARS

# Between these characters the vocabulary's own pattern always ends one word and begins the
# next, and it never looks back: the ids of the parts are the ids of the whole.
_LETTER = r"[A-Za-z0-9\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fff\uac00-\ud7a3]"
_SAFE_CUT = re.compile(
    rf"\S(?=[ \t])|{_LETTER}(?=[\n\r!\"#$%&()*+,\-./:;<=>?@\[\\\]^_`{{|}}~\u3001\u3002\uff0c])"
)


class _Worker(threading.local):
    """What this thread does; nothing is set in a thread that does not take turns."""

    begun_s: float | None = None  # of this thread's CPU time, when its turn began
    tokens: Budget | None = None  # that its work may still make


_worker = _Worker()


async def in_thread(work: Callable[[], R], tokens: Budget | None = None) -> R:
    """Do work while the loop goes on; raises OverBudget when it makes more than those tokens."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_threads, in_turns, work, tokens)


def in_turns(work: Callable[[], R], tokens: Budget | None = None) -> R:
    """The same in this thread, which is not the event loop's."""
    with _turn:
        _worker.begun_s, _worker.tokens = time.thread_time(), tokens
        try:
            return work()
        finally:
            _worker.begun_s = _worker.tokens = None


def rest() -> None:
    """Called between small pieces of work: let the others go on when the turn has been long."""
    if _worker.begun_s is None:
        return
    worked_s = time.thread_time() - _worker.begun_s
    if worked_s < _WORK_S:
        return
    time.sleep(worked_s)
    _turn.release()
    time.sleep(_HANDOVER_S)
    _turn.acquire()
    _worker.begun_s = time.thread_time()


def count_tokens(number: int) -> None:
    """So many have been made; raises OverBudget when its work may make no more."""
    if _worker.tokens is not None:
        _worker.tokens.spend(number)


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
