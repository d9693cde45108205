"""Sends KV events to routers: vLLM's PUB socket, and its ROUTER socket for those who missed some.

A message is topic, sequence number (8 bytes, big-endian) and batch. A client that sends an empty
frame and a number to the ROUTER socket gets all kept messages from that number on, then one whose
number is -1.

The engine's thread only appends to a queue. Where the queue is full, events are left out, and the
next message says that nothing is known any more (AllBlocksCleared): a router may then expect too
little of the cache, never too much.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

import zmq

from engines.errors import EngineStartError
from parts.kv_events.events import BlockEvent, KvEvents
from parts.kv_events.wire import AllBlocksCleared, WireEvent, encoded, wire_event

MAX_WAITING_BLOCKS: Final = 1 << 17  # 16 MB of token ids in blocks of 16
KEPT_BATCHES: Final = 10_000  # for replay, as vLLM keeps
KEPT_BYTES: Final = 64 << 20
_PUB_HWM: Final = 100_000  # messages for a subscriber that does not read; more are left out
_BURST: Final = 64  # messages before replay requests are looked at
_MAX_REQUEST_BYTES: Final = 64
_JOIN_S: Final = 5.0
END: Final = (-1).to_bytes(8, "big", signed=True)

log = logging.getLogger(__name__)


class KvEventPublisher:
    """One engine's stream of events, sent by a thread of its own; an EventSink."""

    def __init__(self, settings: KvEvents, max_waiting_blocks: int = MAX_WAITING_BLOCKS) -> None:
        self._settings = settings
        self._max_waiting = max_waiting_blocks
        self._topic = settings.topic.encode()
        self._waiting: deque[tuple[float, Sequence[BlockEvent]]] = deque()
        # Two counters with one writer each: the engine's thread never waits for a lock.
        self._num_put = self._num_taken = 0  # blocks
        self._is_unknown = True  # what routers believe: the next message clears it
        self._is_full = False
        self._is_stopping = False
        self._number = 0
        self._kept: deque[tuple[bytes, bytes]] = deque(maxlen=KEPT_BATCHES)
        self._num_kept_bytes = 0
        self._thread = threading.Thread(target=self._run, name="kv-events", daemon=True)

    def start(self) -> None:
        """Bind the sockets; raises EngineStartError if an address cannot be had."""
        settings = self._settings
        self._context = zmq.Context()
        self._pub = self._context.socket(zmq.PUB)
        self._pub.set_hwm(_PUB_HWM)
        self._replay = self._context.socket(zmq.ROUTER)
        self._replay.set_hwm(KEPT_BATCHES + 1)
        self._replay.maxmsgsize = _MAX_REQUEST_BYTES
        try:
            self.endpoint = _bind(self._pub, settings.endpoint)
            self.replay_endpoint = settings.replay_endpoint and _bind(
                self._replay, settings.replay_endpoint
            )
        except EngineStartError:
            self._context.destroy(linger=0)
            raise
        self._awake, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        self._thread.start()
        log.info("KV events are published on %s", self.endpoint)

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
            self._context.destroy(linger=0)
            os.close(self._awake)

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._awake, zmq.POLLIN)
        poller.register(self._replay, zmq.POLLIN)
        while not self._is_stopping or self._waiting:
            ready = dict(poller.poll(0 if self._waiting else None))
            if self._awake in ready:
                os.read(self._awake, 1 << 16)
            self._send_waiting()
            if self._replay in ready:
                self._answer()

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
        payload = encoded(at_s, events, self._settings.rank)
        number = self._number.to_bytes(8, "big")
        self._number += 1
        self._pub.send_multipart((self._topic, number, payload))
        self._keep(number, payload)

    def _keep(self, number: bytes, payload: bytes) -> None:
        if len(self._kept) == KEPT_BATCHES:
            self._num_kept_bytes -= len(self._kept.popleft()[1])
        self._kept.append((number, payload))
        self._num_kept_bytes += len(payload)
        while self._num_kept_bytes > KEPT_BYTES:
            self._num_kept_bytes -= len(self._kept.popleft()[1])

    def _answer(self) -> None:
        """Send the kept messages that a request asks for. Anything else is ignored."""
        frames = self._replay.recv_multipart()
        if len(frames) != 3 or frames[1] or len(frames[2]) != len(END):
            return
        client, _, first = frames
        for number, payload in self._kept:
            if number >= first:
                self._replay.send_multipart((client, b"", self._topic, number, payload))
        self._replay.send_multipart((client, b"", b"", END, b""))


def _bind(socket: zmq.Socket[bytes], endpoint: str) -> str:
    """Bind to the address alone; the endpoint with its port, where that was 0."""
    socket.ipv6 = "[" in endpoint
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        raise EngineStartError(
            f"KV events cannot be published on {endpoint}: {zmq.strerror(error.errno or 0)}; use a"
            " free port of an address of this machine"
        ) from error
    return str(socket.getsockopt_string(zmq.LAST_ENDPOINT))
