"""A client that costs little: reads many event streams at once and notes when each piece came."""

from __future__ import annotations

import gc
import json
import selectors
import socket
import time
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Reading:
    """One stream: its pieces as the socket gave them."""

    request_id: str
    connection: socket.socket
    times_ns: list[int] = field(default_factory=list)
    pieces: list[bytes] = field(default_factory=list)

    @property
    def data(self) -> bytes:
        return b"".join(self.pieces)

    def events(self) -> list[tuple[int, dict[str, Any]]]:
        """Each event with the time at which its last byte had come."""
        events, rest = [], b""
        for time_ns, piece in zip(self.times_ns, self.pieces, strict=True):
            *blocks, rest = (rest + piece).split(b"\n\n")
            for block in blocks:
                start = block.find(b"data: {")
                if start >= 0:
                    events.append((time_ns, json.loads(block[start + 6 :])))
        return events


def read_streams(port: int, num_streams: int, body: bytes) -> list[Reading]:
    """Post the body on as many connections and read each to its end."""
    selector = selectors.EpollSelector()
    readings = []
    gc.disable()  # its pauses would be taken for the server's
    try:
        for number in range(num_streams):
            connection = socket.create_connection(("127.0.0.1", port))
            reading = Reading(f"bench-{number}-{time.monotonic_ns()}", connection)
            readings.append(reading)
            selector.register(connection, selectors.EVENT_READ, reading)
        for reading in readings:
            reading.connection.sendall(_request(reading.request_id, body))
            reading.connection.setblocking(False)
        num_open = num_streams
        while num_open:
            for key, _ in selector.select():
                data = key.fileobj.recv(1 << 18)  # type: ignore[union-attr]
                if data:
                    key.data.times_ns.append(time.monotonic_ns())
                    key.data.pieces.append(data)
                else:
                    selector.unregister(key.fileobj)
                    num_open -= 1
    finally:
        gc.enable()
        selector.close()
        for reading in readings:
            reading.connection.close()
    return readings


def _request(request_id: str, body: bytes) -> bytes:
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        b"X-Request-Id: %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
    ) % (request_id.encode(), len(body), body)
