"""What connects to a publisher, with ZeroMQ's own library, and what is published."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec
import zmq

from parts.kv_events.events import Stored
from parts.kv_events.publisher import END, KvEventPublisher
from tests import loopback

TIMEOUT_MS = 30_000
ANY_PORT = f"tcp://{loopback.IN_URL}:0"
TOPIC = "kv@10.0.0.7:8000@nano"
Publish = Callable[..., KvEventPublisher]


class Reader:
    """Connects to a publisher."""

    def __init__(self) -> None:
        self.context = zmq.Context()
        self.timeout_ms = TIMEOUT_MS
        self.is_ipv6 = not loopback.HAS_IPV4
        self._opened: list[zmq.Socket[bytes]] = []

    def connect(self, kind: int, endpoint: str | None) -> zmq.Socket[bytes]:
        assert endpoint is not None
        opened: zmq.Socket[bytes] = self.context.socket(kind)
        self._opened.append(opened)
        opened.ipv6 = self.is_ipv6
        opened.rcvtimeo = self.timeout_ms
        if kind == zmq.SUB:
            opened.subscribe(b"kv@")
        opened.connect(endpoint)
        return opened

    def replay(self, endpoint: str | None, first: int = 0) -> list[tuple[bytes, int, bytes]]:
        """Ask as llm-d does; the kept messages from that number on."""
        dealer = self.connect(zmq.DEALER, endpoint)
        dealer.send_multipart([b"", first.to_bytes(8, "big")])
        messages: list[tuple[bytes, int, bytes]] = []
        try:
            while True:
                empty, topic, number, payload = dealer.recv_multipart()
                assert empty == b""
                if number == END:
                    assert (topic, payload) == (b"", b"")
                    return messages
                messages.append((topic, int.from_bytes(number, "big"), payload))
        finally:
            dealer.close(linger=0)

    def close(self) -> None:
        for opened in self._opened:
            opened.close(linger=0)
        self.context.term()


def stored(number: int, **changes: Any) -> Stored:
    hashes = [bytes(15) + bytes([number])]
    return Stored(hashes, None, [number] * 4, 4, None, None, **changes)


def events_of(payload: bytes) -> list[Any]:
    events: list[Any] = msgspec.msgpack.decode(payload)[1]
    return events


def until_subscribed(publisher: KvEventPublisher, subscriber: zmq.Socket[bytes]) -> int:
    """Publish until a message arrives; its number."""
    until_s = time.monotonic() + TIMEOUT_MS / 1000
    while not subscriber.poll(20):
        assert time.monotonic() < until_s, "nothing comes"
        publisher.publish([stored(0)])
    return int.from_bytes(subscriber.recv_multipart()[1], "big")
