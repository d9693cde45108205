"""Who is connected, and what each gets next: a place in the history, and no queue of its own."""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from collections import Counter, deque
from typing import ClassVar, Final

from parts.kv_events import zmtp
from parts.kv_events.history import BatchHistory, Buffers
from parts.kv_events.zmtp import ProtocolError

PIECE_BYTES: Final = 256 << 10  # sent to one client before others have their turn
_PIECE_MESSAGES: Final = 300  # the kernel takes 1,024 buffers at once
_MOST_TOPICS: Final = 64  # of a subscriber
_MOST_REQUESTS: Final = 64  # of a client that wait for the answer to an earlier one
_FREE_EVENTS: Final = 150  # messages of a client at once, then a second:
_EVENTS_S: Final = 100
_NUMBER_BYTES: Final = 8
END: Final = (-1).to_bytes(_NUMBER_BYTES, "big", signed=True)
_EMPTY: Final = zmtp.frame(b"", is_last=False)
_END_MESSAGE: Final = _EMPTY + _EMPTY + zmtp.frame(END, is_last=False) + zmtp.frame(b"")


class PortClient(ABC):
    """One connection. Of what it has not taken, at most one piece is held for it."""

    socket_type: ClassVar[bytes]  # ours
    peer_types: ClassVar[tuple[bytes, ...]]

    def __init__(self, connection: socket.socket, address: str, now_s: float) -> None:
        self.connection, self.address = connection, address
        self.is_ready = False  # the handshake is done
        self.since_s = now_s  # when it came
        self.num_taken = 0  # bytes
        self.taken_s = now_s  # when it last took some, or all
        self._credit, self._credit_s = float(_FREE_EVENTS), now_s
        self._reader = zmtp.Reader()
        self._piece: Buffers = [zmtp.GREETING + zmtp.ready(self.socket_type)]

    @abstractmethod
    def has_asked(self) -> bool:
        """Whether it has an open request or subscription."""

    @abstractmethod
    def has_next(self, history: BatchHistory) -> bool:
        """Whether there is more for it than the piece that it has begun to take."""

    @abstractmethod
    def _next(self, history: BatchHistory) -> Buffers:
        """The next message for it."""

    @abstractmethod
    def _take(self, message: zmtp.Message, history: BatchHistory) -> None:
        """Take what it asks for; raises ProtocolError for too much."""

    def is_behind(self, history: BatchHistory) -> bool:
        """Whether it can take more."""
        return bool(self._piece) or (self.is_ready and self.has_next(history))

    def receive(self, data: bytes, history: BatchHistory, now_s: float) -> None:
        """Take what came; raises ProtocolError."""
        gained = (now_s - self._credit_s) * _EVENTS_S
        self._credit, self._credit_s = min(self._credit + gained, _FREE_EVENTS), now_s
        for event in self._reader.feed(data):
            self._credit -= 1
            if self._credit < 0:
                raise ProtocolError(f"it sends more than {_EVENTS_S} messages a second")
            if isinstance(event, tuple):
                self._take(event, history)
            elif isinstance(event, zmtp.PeerReady):
                if event.socket_type not in self.peer_types:
                    names = b" or ".join(self.peer_types).decode()
                    raise ProtocolError(f"its socket is no {names}")
                self.is_ready = True
            elif not self._piece:  # else that shows that we live
                self._piece = [zmtp.pong(event.context)]

    def send(self, history: BatchHistory, now_s: float) -> None:
        """Send what the kernel takes of one piece; raises OSError where the client is gone."""
        if not self._piece and self.is_ready:
            self._make_piece(history)
        if not self._piece:
            return
        try:
            num = self.connection.sendmsg(self._piece)
        except (BlockingIOError, InterruptedError):
            return
        self.num_taken += num
        self.taken_s = now_s
        for index, each in enumerate(self._piece):
            if num < len(each):
                self._piece = [memoryview(each)[num:], *self._piece[index + 1 :]]
                return
            num -= len(each)
        self._piece = []

    def _make_piece(self, history: BatchHistory) -> None:
        num_bytes = num_messages = 0
        while num_bytes < PIECE_BYTES and num_messages < _PIECE_MESSAGES and self.has_next(history):
            message = self._next(history)
            self._piece += message
            num_bytes += sum(map(len, message))
            num_messages += 1


class Subscriber(PortClient):
    """Gets all batches from its subscription on; those that it is too slow for are left out."""

    socket_type = b"PUB"
    peer_types = (b"SUB", b"XSUB")

    def __init__(self, connection: socket.socket, address: str, now_s: float) -> None:
        super().__init__(connection, address, now_s)
        self._topics: Counter[bytes] = Counter()  # beginnings of topics that it wants
        self._number: int | None = None  # of its next batch; None: it wants none

    def has_asked(self) -> bool:
        return self._number is not None

    def has_next(self, history: BatchHistory) -> bool:
        return self._number is not None and self._number < history.next

    def _next(self, history: BatchHistory) -> Buffers:
        assert self._number is not None
        number = max(self._number, history.first)
        self._number = number + 1
        return history.message(number)

    def _take(self, message: zmtp.Message, history: BatchHistory) -> None:
        [word] = message if len(message) == 1 else [b""]
        if word[:1] == b"\1":
            self._topics[word[1:]] += 1
            if len(self._topics) > _MOST_TOPICS:
                raise ProtocolError(f"it subscribes to more than {_MOST_TOPICS} topics")
        elif word[:1] == b"\0":
            self._topics -= Counter([word[1:]])  # one that is left at 0 goes
        is_wanted = any(map(history.topic.startswith, self._topics))
        if is_wanted != self.has_asked():
            self._number = history.next if is_wanted else None


class Replayer(PortClient):
    """Gets the batches that it asks for as far as they are kept, then a message that ends them."""

    socket_type = b"ROUTER"
    peer_types = (b"DEALER", b"REQ", b"ROUTER")

    def __init__(self, connection: socket.socket, address: str, now_s: float) -> None:
        super().__init__(connection, address, now_s)
        self._asked: deque[tuple[int, int]] = deque()  # the next number, and the one to end before

    def has_asked(self) -> bool:
        return bool(self._asked)

    def has_next(self, history: BatchHistory) -> bool:
        return bool(self._asked)

    def _next(self, history: BatchHistory) -> Buffers:
        number, end = self._asked.popleft()
        number = max(number, history.first)
        if number >= end:
            return [_END_MESSAGE]
        self._asked.appendleft((number + 1, end))
        return [_EMPTY, *history.message(number)]

    def _take(self, message: zmtp.Message, history: BatchHistory) -> None:
        if len(message) != 2 or message[0] or len(message[1]) != _NUMBER_BYTES:
            return  # no request
        if len(self._asked) >= _MOST_REQUESTS:
            raise ProtocolError(f"more than {_MOST_REQUESTS} of its requests wait")
        self._asked.append((int.from_bytes(message[1], "big"), history.next))
