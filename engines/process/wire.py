"""What the engine process and its clients say to each other.

Clients speak to the host over a local ZeroMQ socket in msgpack; the host reports its
own life to the supervisor that spawned it as lines of JSON on stdout. Streams and
calls are numbered by the client that opened them, so two clients never collide.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum
from typing import Any, Final

import msgspec

from engines.base import EngineInfo, EngineRequest, EngineStats, ExpectedWaits, TokenEvent
from engines.errors import EngineError, Refused
from engines.grammar.tree import from_plain, to_plain

PROTOCOL_VERSION: Final = 5
# How long a thread that computes keeps Python's lock while another waits for it. A step's launches
# and the event loop wait often; the default of 5 ms lengthened gaps between tokens on a GPU.
SWITCH_INTERVAL_S: Final = 0.0002
HEARTBEAT_S: Final = 0.5  # how often each side says that it lives


class HostState(StrEnum):
    """How far the engine behind the socket is."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    DEAD = "dead"  # it gave up; the process ends at its next look


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    """A client's first message; the answer is a Status."""

    version: int


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

    version: int
    state: HostState
    info: EngineInfo | None = None  # known from READY on
    life: int = 0  # of the engine process: another after each death
    waits: ExpectedWaits | None = None  # in its queue


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
