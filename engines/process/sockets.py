"""A ZeroMQ socket that the running asyncio loop reads: no future and no task per message."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

import zmq

MAX_BURST = 64  # messages handled before other callbacks of the loop get their turn
MAX_BURST_S = 0.005  # and what they may take: a message may hold a prompt, or many events

log = logging.getLogger(__name__)


class LoopSocket:
    """Hands each message that arrives to `on_message`, in order, on the running loop."""

    def __init__(
        self, socket: zmq.Socket[bytes], on_message: Callable[[list[bytes]], None]
    ) -> None:
        self._socket = socket
        self._on_message = on_message
        self._loop = asyncio.get_running_loop()
        self._is_due = False  # a look at what has arrived, in the next turn of the loop
        self._loop.add_reader(socket.fileno(), self.read)
        self._read_soon()

    def send(self, frames: list[bytes]) -> None:
        """Queue a message; raises zmq.ZMQError when the peer is unknown or gone."""
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK)
        finally:
            # ZeroMQ's descriptor is edge-triggered and sending may consume the edge, also when
            # it raises: the Hello of a client that connected anew would lie unread for ever.
            if self._has_message():
                self._read_soon()

    def _read_soon(self) -> None:
        """Once a turn, however many messages are sent in it."""
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._read_due)

    def _read_due(self) -> None:
        self._is_due = False
        self.read()

    def read(self) -> None:
        """Handle what has arrived, up to a burst; the rest follows in the loop's next turn."""
        until_s = time.perf_counter() + MAX_BURST_S
        for _ in range(MAX_BURST):
            if not self._has_message():
                return
            self._receive()
            if time.perf_counter() > until_s:
                break
        self._read_soon()

    def read_all(self) -> None:
        """Handle everything that has arrived."""
        while self._has_message():
            self._receive()

    def _receive(self) -> None:
        frames = self._socket.recv_multipart(zmq.NOBLOCK)
        try:
            self._on_message(frames)
        except Exception:
            log.exception("A message of %d frames could not be handled", len(frames))

    def _has_message(self) -> bool:
        if self._socket.closed:
            return False
        return bool(int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)

    def close(self, linger_s: float = 0.0) -> None:
        """Close the socket; ZeroMQ tries for `linger_s` to send what is still queued."""
        if not self._socket.closed:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close(linger=int(linger_s * 1000))
