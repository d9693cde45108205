"""One connection of a client to the host, from connecting to the moment it is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
import zmq
from zmq.utils.monitor import parse_monitor_message

from engines.process.sockets import LoopSocket
from engines.process.wire import (
    PROTOCOL_VERSION,
    ClientMessage,
    Hello,
    HostMessage,
)

RECONNECT_MS: Final = 50  # how often ZeroMQ looks for a host that is not there yet


class Link:
    """Says Hello, then carries messages until `on_lost` is called; it is never used again."""

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
        """Handle everything that has arrived, now."""
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
