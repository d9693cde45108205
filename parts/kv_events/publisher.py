"""Sends KV events to routers, as vLLM's PUB socket does, and its ROUTER socket for those who missed
some.

A message is topic, sequence number (8 bytes, big-endian) and batch. A client that sends an empty
frame and a number to the ROUTER socket gets all kept messages from that number on, then one whose
number is -1.

The engine's thread only appends to a queue. Where the queue is full, events are left out, and the
next message says that nothing is known any more (AllBlocksCleared): a router may then expect too
little of the cache, never too much.

What is sent is kept once, in a BatchHistory; clients are places in it.
"""

from __future__ import annotations

import logging
import os
import selectors
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

from engines.errors import EngineStartError
from parts.kv_events.clients import END, Replayer, Subscriber
from parts.kv_events.events import BlockEvent, KvEvents
from parts.kv_events.history import BatchHistory
from parts.kv_events.port import Port
from parts.kv_events.wire import AllBlocksCleared, WireEvent, encoded, wire_event

__all__ = ["END", "KvEventPublisher"]

MAX_WAITING_BLOCKS: Final = 1 << 17  # 16 MB of token ids in blocks of 16
_BURST: Final = 64  # messages before clients are looked at
_LOOK_S: Final = 1.0  # between two looks at slow clients
_JOIN_S: Final = 5.0

log = logging.getLogger(__name__)


class KvEventPublisher:
    """One engine's stream of events, sent by a thread of its own; an EventSink."""

    def __init__(self, settings: KvEvents, max_waiting_blocks: int = MAX_WAITING_BLOCKS) -> None:
        self._settings = settings
        self._max_waiting = max_waiting_blocks
        self._history = BatchHistory(settings.topic.encode())
        self._ports: list[Port] = []
        self._waiting: deque[tuple[float, Sequence[BlockEvent]]] = deque()
        # Two counters with one writer each: the engine's thread never waits for a lock.
        self._num_put = self._num_taken = 0  # blocks
        self._is_unknown = True  # what routers believe: the next message clears it
        self._is_full = False
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="kv-events", daemon=True)

    def start(self) -> None:
        """Bind the ports; raises EngineStartError if an address cannot be had."""
        settings = self._settings
        self._selector = selectors.DefaultSelector()
        try:
            self.endpoint = self._bind(settings.endpoint, Subscriber)
            replay = settings.replay_endpoint
            self.replay_endpoint = None if replay is None else self._bind(replay, Replayer)
        except EngineStartError:
            self._close()
            raise
        self._awake, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        self._selector.register(self._awake, selectors.EVENT_READ, self._on_wake)
        self._thread.start()
        log.info("KV events are published on %s", self.endpoint)

    def _bind(self, endpoint: str, kind: type[Subscriber] | type[Replayer]) -> str:
        port = Port(endpoint, kind, self._history, self._selector)
        self._ports.append(port)
        return port.endpoint

    def publish(self, events: Sequence[BlockEvent]) -> None:
        """Queue what one step changed; called by one thread alone."""
        num = sum(len(event.hashes) for event in events)
        if self._is_full or self._num_put - self._num_taken + num > self._max_waiting:
            self._is_full = True
        else:
            self._num_put += num
            self._waiting.append((time.time(), events))
        self._wake_up()

    def stop(self) -> None:
        """Send what waits, end the thread and close the sockets, where that is still to be done."""
        if self._is_stopping or self._thread.ident is None:
            return
        self._is_stopping = True
        self._wake_up()
        self._thread.join(_JOIN_S)
        os.close(self._wake)

    def _wake_up(self) -> None:
        with suppress(OSError):  # full: it is awake already; closed: it has ended
            os.write(self._wake, b"w")

    def _run(self) -> None:
        try:
            self._serve()
        except Exception:
            log.exception("KV events are no longer published")
        finally:
            self._is_full = True
            self._waiting.clear()
            self._close()
            os.close(self._awake)

    def _close(self) -> None:
        for port in self._ports:
            port.close()
        self._selector.close()

    def _on_wake(self, now_s: float, events: int) -> None:
        os.read(self._awake, 1 << 16)

    def _serve(self) -> None:
        looked_s = time.monotonic()
        while not self._is_stopping or self._waiting:
            ready = self._selector.select(self._patience_s())
            now_s = time.monotonic()
            for key, events in ready:
                on_ready: Any = key.data
                on_ready(now_s, events)
            self._send_waiting()  # after _on_wake: what is queued from here on wakes us again
            for port in self._ports:
                port.send(now_s)
            if now_s - looked_s >= _LOOK_S:
                looked_s = now_s
                for port in self._ports:
                    port.look(now_s)

    def _patience_s(self) -> float:
        """How long to wait at most for anything to happen."""
        return 0.0 if self._waiting or self._is_stopping else _LOOK_S

    def _send_waiting(self) -> None:
        for _ in range(_BURST):
            if not self._waiting:
                break
            at_s, events = self._waiting.popleft()
            self._num_taken += sum(len(event.hashes) for event in events)
            self._send(at_s, map(wire_event, events))
        if self._is_full and not self._waiting:
            self._is_full = False  # first: what is queued from here on comes after the message
            log.warning("KV events were dropped: they came faster than they could be sent")
            self._is_unknown = True
            self._send(time.time(), ())

    def _send(self, at_s: float, events: Iterable[WireEvent]) -> None:
        if self._is_unknown:
            events, self._is_unknown = [AllBlocksCleared(), *events], False
        self._history.append(encoded(at_s, events, self._settings.rank))
