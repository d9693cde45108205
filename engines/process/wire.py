"""What the engine process and its clients say to each other.

Clients speak to the host over a local ZeroMQ socket in msgpack; the host reports its
own life to the supervisor that spawned it as lines of JSON on stdout. Streams and
calls are numbered by the client that opened them, so two clients never collide.
The running asyncio loop reads the sockets: there is no future and no task per message.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from enum import StrEnum
from typing import Any, Final

import msgspec
import zmq
from zmq.utils.monitor import parse_monitor_message

from engines import fields
from engines.base import EngineInfo, EngineRequest, EngineStats, ExpectedWaits, TokenEvent
from engines.errors import EngineError, Refused
from engines.grammar.tree import from_plain, to_plain

# Of the messages, and of the fields that requests have; older releases have a number.
PROTOCOL_VERSION: Final = f"7-{fields.version()}"
# How long a thread that computes keeps Python's lock while another waits for it. A step's launches
# and the event loop wait often; the default of 5 ms lengthened gaps between tokens on a GPU.
SWITCH_INTERVAL_S: Final = 0.0002
HEARTBEAT_S: Final = 0.5  # how often each side says that it lives

MAX_BURST = 64  # messages handled before other callbacks of the loop get their turn
MAX_BURST_S = 0.002  # and what they may take: a message may hold a prompt, or many events
log = logging.getLogger(__name__)
RECONNECT_MS: Final = 50  # how often ZeroMQ looks for a host that is not there yet


class HostState(StrEnum):
    """How far the engine behind the socket is."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    DEAD = "dead"  # it gave up; the process ends at its next look


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    """A client's first message; the answer is a Status."""

    version: str | int


class Beat(msgspec.Struct, frozen=True, array_like=True, tag="beat"):
    """A client's heartbeat; a client that falls silent has its requests aborted."""


class Submit(msgspec.Struct, frozen=True, array_like=True, tag="submit"):
    """Open a stream: run this request, whose grammar is beside it."""

    stream: int
    request: EngineRequest
    grammar: list[Any] | None = None

    @classmethod
    def of(cls, stream: int, request: EngineRequest) -> Submit:
        """A Submit for this request, its grammar in plain form; raises InvalidGrammar for one too
        deep."""
        if request.grammar is None:
            return cls(stream, request)
        return cls(stream, replace(request, grammar=None), to_plain(request.grammar))

    @property
    def whole(self) -> EngineRequest:
        """The request with its grammar; raises ValueError for a grammar that cannot be read."""
        if self.grammar is None:
            return self.request
        return replace(self.request, grammar=from_plain(self.grammar))


class Abort(msgspec.Struct, frozen=True, array_like=True, tag="abort"):
    """Close a stream; nothing more is sent for it."""

    stream: int


class StatsQuery(msgspec.Struct, frozen=True, array_like=True, tag="stats"):
    """Ask for the engine's counts."""

    call: int


class Status(msgspec.Struct, frozen=True, array_like=True, tag="status"):
    """The host's state, sent as answer to Hello, at every change and as heartbeat."""

    version: str | int
    state: HostState
    info: EngineInfo | None = None  # known from READY on
    life: int = 0  # of the engine process: another after each death
    waits: ExpectedWaits | None = None  # in its queue
    entered: list[int] = []  # the client's streams that have left the queue, before their token
    pace: float | None = None  # seconds per token, of what ran lately


class StreamFailure(msgspec.Struct, frozen=True, array_like=True):
    """The error that ended a stream; rebuilt as the same EngineError by the client."""

    stream: int
    code: str
    message: str
    retry_s: int = 0  # of a refusal


class StepMessage(msgspec.Struct, frozen=True, array_like=True, tag="step"):
    """All that happened to one client's streams since the last such message, in order.

    One token with nothing else to tell is its id alone: the rest is as in the stream's last whole
    event.
    """

    events: list[tuple[int, int | TokenEvent]]  # (stream, event)
    failures: list[StreamFailure] = []  # each after the stream's last event


class StatsReply(msgspec.Struct, frozen=True, array_like=True, tag="stats_reply"):
    """The engine's counts, as answer to a StatsQuery."""

    call: int
    stats: EngineStats


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The engine has started."""


class Alive(msgspec.Struct, frozen=True, tag="alive"):
    """The host's loop runs; without this report, or without progress, the host hangs."""

    work_done: int = 0  # grows with every event, token and step
    is_running: bool = False  # whether it should be growing
    doing: str = ""  # before it is ready: engines/start_steps.py


class Fatal(msgspec.Struct, frozen=True, tag="fatal"):
    """The host ends because of this error."""

    code: str
    message: str


ClientMessage = Hello | Beat | Submit | Abort | StatsQuery
HostMessage = Status | StepMessage | StatsReply
LifeMessage = Ready | Alive | Fatal


def _classes(root: type[EngineError]) -> Iterator[type[EngineError]]:
    yield root
    for child in root.__subclasses__():
        yield from _classes(child)


def error_from(code: str, message: str, retry_s: int = 0) -> EngineError:
    """Rebuild an engine error from its wire form; an unknown code stays readable."""
    for error in _classes(EngineError):
        if error.code == code:
            return error(message, retry_s=retry_s) if issubclass(error, Refused) else error(message)
    return EngineError(f"{code}: {message}")


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
