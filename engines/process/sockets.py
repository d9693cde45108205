"""ZeroMQ sockets that the running asyncio loop reads, and a client's connection made of two.

There is no future and no task per message.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

import msgspec
import zmq
from zmq.utils.monitor import parse_monitor_message

from engines.process.wire import (
    PROTOCOL_VERSION,
    ClientMessage,
    Hello,
    HostMessage,
)

MAX_BURST = 64  # messages handled before other callbacks of the loop get their turn
MAX_BURST_S = 0.005  # and what they may take: a message may hold a prompt, or many events

log = logging.getLogger(__name__)

RECONNECT_MS: Final = 50  # how often ZeroMQ looks for a host that is not there yet


class LoopSocket:
    """A ZeroMQ socket that hands each message to `on_message`, in order, on the running loop."""

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
            # it raises: the Hello of a reconnected client would stay unread for ever.
            if self._has_message():
                self._read_soon()

    def _read_soon(self) -> None:
        """Schedule one read per turn of the loop, for all messages sent in it."""
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._read_due)

    def _read_due(self) -> None:
        self._is_due = False
        self.read()

    def read(self) -> None:
        """Handle messages that have arrived, up to a burst; the rest in the loop's next turn."""
        until_s = time.perf_counter() + MAX_BURST_S
        for _ in range(MAX_BURST):
            if not self._has_message():
                return
            self._receive()
            if time.perf_counter() > until_s:
                break
        self._read_soon()

    def read_all(self) -> None:
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


class Link:
    """One connection to the host: says Hello, carries messages until `on_lost`, is never used
    again."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        address: str,
        on_message: Callable[[HostMessage], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self._on_message = on_message
        self._on_lost = on_lost
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[HostMessage] = msgspec.msgpack.Decoder(HostMessage)
        self._dealer = context.socket(zmq.DEALER)
        self._dealer.set_hwm(0)  # the host bounds what it sends; nothing is dropped here
        self._dealer.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        monitor = self._dealer.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._socket = LoopSocket(self._dealer, self._on_frames)
        self._monitor = LoopSocket(monitor, self._on_event)
        self._dealer.connect(address)
        self.send(Hello(PROTOCOL_VERSION))

    def send(self, message: ClientMessage) -> None:
        """Queue a message for the host."""
        self._socket.send([self._encoder.encode(message)])

    def read_pending(self) -> None:
        """Handle every message that has arrived, now."""
        self._socket.read_all()

    def close(self) -> None:
        """Disconnect; the host aborts what this connection had open."""
        if not self._dealer.closed:
            self._dealer.disable_monitor()
        self._monitor.close()
        self._socket.close()

    def _on_frames(self, frames: list[bytes]) -> None:
        self._on_message(self._decoder.decode(frames[0]))

    def _on_event(self, frames: list[bytes]) -> None:
        if parse_monitor_message(frames)["event"] == zmq.EVENT_DISCONNECTED:
            self.read_pending()  # what the host said before it went still counts
            self._on_lost("the connection to the engine was lost")
