"""The last batches of events, by number: what subscribers get next, and what was missed."""

from __future__ import annotations

from collections import deque
from typing import Final

from parts.kv_events import zmtp

KEPT_BATCHES: Final = 10_000  # as vLLM keeps
KEPT_BYTES: Final = 64 << 20

Buffers = list[bytes | memoryview]  # one after the other


class BatchHistory:
    """Batches that are numbered from 0 on. All who read them share these bytes."""

    def __init__(self, topic: bytes) -> None:
        self.topic = topic
        self._kept: deque[tuple[bytes, bytes]] = deque()  # what comes before a payload, and it
        self._num_bytes = 0
        self.first = 0  # number of the first one that is kept
        self.next = 0  # of the next one to come

    def append(self, payload: bytes) -> None:
        """Keep a batch, and forget the first ones where that is too much."""
        number = zmtp.frame(self.next.to_bytes(8, "big"), is_last=False)
        topic = zmtp.frame(self.topic, is_last=False)
        self._kept.append((topic + number + zmtp.head(len(payload)), payload))
        self.next += 1
        self._num_bytes += len(payload)
        while len(self._kept) > KEPT_BATCHES or self._num_bytes > KEPT_BYTES:
            self._num_bytes -= len(self._kept.popleft()[1])
            self.first += 1

    def message(self, number: int) -> Buffers:
        return [*self._kept[number - self.first]]
