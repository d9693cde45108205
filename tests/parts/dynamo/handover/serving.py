"""A server of K/V without an engine, and what asks it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from typing import Any, ClassVar, Final

from engines.base import EngineRequest, SamplingParams
from parts.dynamo.handover.ask import Fingerprint, PrefillAsk
from parts.dynamo.handover.channel import memory
from parts.dynamo.handover.fetch import Fetch
from parts.dynamo.handover.idle_channels import IdleChannels
from parts.dynamo.handover.server import Piece
from tests.parts.dynamo.handover.pairs import SECRET

Serve = Callable[[Any], str]  # a source; the address
REQUEST: Final = EngineRequest("asked", (1, 2, 3), SamplingParams(5))


class Waiting:
    """An engine whose prompts take for ever, or give what they are told to."""

    fingerprint: ClassVar[Fingerprint] = {"all": "the same"}
    most_bytes = 1 << 20
    is_cached = False

    def __init__(self, pieces: Callable[[], Iterator[Piece]] | None = None) -> None:
        self._pieces = pieces
        self.num_asked = 0
        self.is_asked = threading.Event()

    @contextmanager
    def serve(self, ask: PrefillAsk) -> Iterator[Waiting]:
        yield self

    async def compute(self) -> None:
        self.num_asked += 1
        self.is_asked.set()
        await asyncio.Event().wait()

    def note_computed(self, computing: Future[None]) -> None:
        assert computing.cancelled()

    def pieces(self, every_s: float) -> Iterator[Piece | None]:
        if self._pieces is not None:
            return self._pieces()
        return iter(lambda: time.sleep(every_s), 0)


def gives_two_blocks() -> Waiting:
    return Waiting(lambda: iter([([b"k1", b"k2"], memoryview(b"12345678"))]))


TWO_BLOCKS: Final = [([b"k1", b"k2"], bytearray(b"12345678"))]


class Kept:
    """What came; implements parts.dynamo.handover.fetch.Taker."""

    def __init__(self, block_bytes: int, taken: list[Any]) -> None:
        self.block_bytes, self.taken = block_bytes, taken

    def room(self, num_bytes: int) -> memoryview:
        return memory(num_bytes)

    def take(self, keys: list[bytes], content: memoryview) -> None:
        self.taken.append((keys, content))


def fetch(endpoint: str, block_bytes: int = 4, timeout_s: float = 5.0) -> list[Any]:
    with closing(IdleChannels()) as idle:
        return fetch_over(idle, endpoint, block_bytes, timeout_s)


def fetch_over(
    idle: IdleChannels, endpoint: str, block_bytes: int = 4, timeout_s: float = 5.0
) -> list[Any]:
    taken: list[Any] = []
    ask = PrefillAsk(REQUEST, Waiting.fingerprint)
    one = Fetch(SECRET, timeout_s, idle)
    one.run(endpoint, ask, Kept(block_bytes, taken))
    return taken
