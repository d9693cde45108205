"""A bounded queue between the recorders and a collector that may be slow or gone."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

log = logging.getLogger(__name__)

MAX_ITEMS: Final = 2048  # waiting; what comes on top is dropped and counted
MAX_BATCH: Final = 512
DELAY_S: Final = 1.0

Send = Callable[[Sequence[Any]], bool]


class Outbox:
    """A bounded queue whose put() never waits or raises; a thread sends batches, counts losses."""

    def __init__(
        self,
        signal: str,
        send: Send,
        on_dropped: Callable[[str, int], None],
        max_items: int = MAX_ITEMS,
    ) -> None:
        """`send` returns whether the batch arrived; `on_dropped` gets the signal and a number."""
        self._signal = signal
        self._send = send
        self._on_dropped = on_dropped
        self._max_items = max_items
        self._items: deque[Any] = deque()
        self._lock = threading.Lock()  # a batch is counted as lost once: when sent or at the end
        self._num_sending = 0
        self._wanted = threading.Event()
        self._is_closing = False
        self._is_abandoned = False
        self._is_failing = False
        self._thread = threading.Thread(target=self._run, name=f"otel-{signal}", daemon=True)
        self._thread.start()

    def put(self, item: Any) -> None:
        """Queue an item, or drop it when the queue is full."""
        if len(self._items) >= self._max_items or self._is_closing:
            self._on_dropped(self._signal, 1)
            return
        self._items.append(item)
        if len(self._items) >= MAX_BATCH:
            self._wanted.set()

    def close(self, timeout_s: float) -> None:
        """Send what waits, for no longer than this; what is left then is dropped and counted.

        So is a batch that is still being sent: the result is not awaited, and
        nothing is logged about it, because the log may have ended too.
        """
        self._is_closing = True
        self._wanted.set()
        self._thread.join(timeout_s)
        with self._lock:
            self._is_abandoned = True
            num_lost, self._num_sending = len(self._items) + self._num_sending, 0
            self._items.clear()
        if num_lost:
            self._on_dropped(self._signal, num_lost)

    def _run(self) -> None:
        while not (self._is_closing and not self._items):
            self._wanted.wait(DELAY_S)
            self._wanted.clear()
            while self._items:
                self._send_batch()

    def _send_batch(self) -> None:
        batch: list[Any] = []
        with self._lock:
            while self._items and len(batch) < MAX_BATCH:
                batch.append(self._items.popleft())
            self._num_sending = len(batch)
        if not batch:
            return  # the end has dropped them
        failure: Exception | None = None
        try:
            is_sent = self._send(batch)
        except Exception as error:
            is_sent, failure = False, error
        with self._lock:
            if self._is_abandoned:
                return
            num_lost, self._num_sending = 0 if is_sent else self._num_sending, 0
        if failure is not None:
            log.debug("sending %s failed", self._signal, exc_info=failure)
        if num_lost:
            self._on_dropped(self._signal, num_lost)
        if is_sent is self._is_failing:
            self._tell(is_sent)

    def _tell(self, is_sent: bool) -> None:
        """Once for each change: a collector that is gone must not fill the log."""
        self._is_failing = not is_sent
        if is_sent:
            log.info("The collector accepts %s again", self._signal)
        else:
            log.warning(
                "The collector does not accept %s; they are dropped until it does", self._signal
            )
