"""The ids of long texts of one client, whose prompts have most of their texts again each turn."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from contextvars import ContextVar
from hashlib import blake2b
from threading import Lock
from typing import Final

LEAST_CHARS: Final = 256  # of a text that is kept: encoding a shorter one takes no longer
MOST_TOKENS: Final = 131_072  # of all of them: a whole context, half a megabyte


class KnownTexts:
    """The least recently used texts make room.

    A text that is known is encoded sooner, which a client can measure: so what one client wrote is
    known to itself only.
    """

    def __init__(self, most_tokens: int = MOST_TOKENS) -> None:
        self._most = most_tokens
        self._ids: OrderedDict[bytes, array[int]] = OrderedDict()
        self._lock = Lock()  # prompts are written in threads
        self.num_tokens = 0
        self.num_found = 0

    def find(self, text: str) -> list[int] | None:
        if len(text) < LEAST_CHARS:
            return None
        with self._lock:
            if (ids := self._ids.get(key := _key(text))) is None:
                return None
            self._ids.move_to_end(key)
            self.num_found += 1
        return ids.tolist()

    def keep(self, text: str, token_ids: list[int]) -> None:
        if len(text) < LEAST_CHARS:
            return
        with self._lock:
            key = _key(text)
            self.num_tokens += len(token_ids) - len(self._ids.pop(key, ()))
            self._ids[key] = array("I", token_ids)
            while self.num_tokens > self._most:
                self.num_tokens -= len(self._ids.popitem(last=False)[1])


def _key(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


KNOWN_TEXTS: Final[ContextVar[KnownTexts | None]] = ContextVar("known_texts", default=None)
