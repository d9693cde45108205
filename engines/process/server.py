"""The host's side of the socket: runs clients' requests on one engine, one message per step."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import zmq

from engines.base import EngineRequest, Outcome, TokenEvent
from engines.errors import EngineDead, EngineError, OutOfMemory, RequestFailed
from engines.process.pace import TokenPace
from engines.process.wire import (
    PROTOCOL_VERSION,
    Abort,
    Beat,
    ClientMessage,
    Hello,
    HostMessage,
    HostState,
    LoopSocket,
    StatsQuery,
    StatsReply,
    Status,
    StepMessage,
    StreamFailure,
    Submit,
)
from engines.queueing.admission import QueuedEngine
from engines.queueing.fair_queue import Entry
from engines.threads import NO_THREAD, lacks_threads

CLIENT_SILENCE_S: Final = 30.0  # a client that says nothing for so long has its requests aborted
MOST_TOGETHER: Final = 64  # events in a message: a client works on it while a step's rest is read
CLOSE_LINGER_S: Final = 1.0  # the last events of a drained engine still reach their readers

log = logging.getLogger(__name__)


_NO_MEMORY: Final = "out of memory for this request"


class _Submitted(msgspec.Struct, array_like=True, tag="submit"):
    """The beginning of a Submit, which takes no memory to speak of."""

    stream: int


_SUBMITTED: Final = msgspec.msgpack.Decoder(_Submitted)


class _Run:
    """One request of a client: a stream of events to it."""

    __slots__ = ("_server", "entry", "has_begun", "num_restarts", "opening", "peer", "stream")

    def __init__(self, server: EngineServer, peer: Peer, stream: int) -> None:
        self._server = server
        self.peer = peer
        self.stream = stream
        self.opening: asyncio.Task[None] | None = None
        self.has_begun = False  # an event of it was sent
        self.num_restarts = 0  # as the last whole event told
        self.entry: Entry[Any] | None = None  # once the engine has it in its queue

    @property
    def is_before_first_token(self) -> bool:
        """Whether the engine has taken it and given nothing yet."""
        return not self.has_begun and self.entry is not None and self.entry.is_inside

    def receive(self, outcome: Outcome) -> None:
        """Take one outcome of the engine; called for every token."""
        if not isinstance(outcome, int):
            self._server.on_outcome(self, outcome)
            return
        events = (peer := self.peer).events
        events.append((self.stream, outcome))
        if not 1 < len(events) < MOST_TOGETHER:
            self._server.on_events(peer)


@dataclass(slots=True, eq=False)
class Peer:
    """A connected client: its streams, and what waits to be sent to it."""

    identity: bytes
    heard_s: float
    streams: dict[int, _Run] = field(default_factory=dict)
    events: list[tuple[int, int | TokenEvent]] = field(default_factory=list)
    failures: list[StreamFailure] = field(default_factory=list)


class EngineServer:
    """Serves one engine to any number of clients; must be made inside a running loop.

    The socket has no high-water mark, so ZeroMQ drops nothing and never blocks: what a
    slow client has not read is bounded by its own requests, and a silent client loses them.
    """

    def __init__(self, address: str) -> None:
        self._path = Path(address.removeprefix("ipc://"))
        self._life = time.monotonic_ns()
        self._context = zmq.Context()
        router = self._context.socket(zmq.ROUTER)
        router.set_hwm(0)
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)  # sending to a client that is gone raises
        try:
            router.bind(address)
        except zmq.ZMQError:
            self._context.destroy(linger=0)
            raise
        self._socket = LoopSocket(router, self._on_frames)
        self._loop = asyncio.get_running_loop()
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(ClientMessage)
        self._peers: dict[bytes, Peer] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._engine: QueuedEngine[Any] | None = None
        self._state = HostState.STARTING
        self._num_events = 0  # that the engine has ever given
        self._unsent: set[Peer] = set()  # peers with events or failures to flush
        self._pace = TokenPace(time.monotonic())
        self._seconds_per_token: float | None = None

    def serve(self, engine: QueuedEngine[Any]) -> None:
        self._engine = engine
        self._enter(HostState.READY)

    def beat(self) -> None:
        """Tell every client the host's state; forget clients that are gone, abort those that are
        silent."""
        self._seconds_per_token = self._pace.seconds_per_token(time.monotonic())
        self._announce()
        for peer in self._peers.values():
            if peer.streams and time.monotonic() - peer.heard_s > CLIENT_SILENCE_S:
                self._silence(peer)

    async def progress(self) -> tuple[int, bool]:
        """A number that grows while the engine works, and whether it should be growing."""
        if self._engine is None:
            return 0, False
        try:
            stats = await self._engine.stats()
        except EngineDead:  # check_health says so too, and ends the process
            return 0, False
        return self._num_events + stats.work_done, stats.num_running > 0

    async def drain(self) -> None:
        """Let the engine finish running requests and send every event."""
        self._enter(HostState.DRAINING)
        if self._engine is not None:
            await self._engine.drain()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._flush()

    async def close(self) -> None:
        for peer in self._peers.values():
            for run in list(peer.streams.values()):
                self._close(run)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._peers.clear()  # the engine has still to stop: nothing is sent to them meanwhile
        self._unsent.clear()
        self._socket.close(linger_s=CLOSE_LINGER_S)
        self._context.term()
        self._path.unlink(missing_ok=True)  # ZeroMQ leaves the socket's file

    def _enter(self, state: HostState) -> None:
        self._state = state
        self._announce()

    def _announce(self) -> None:
        for peer in list(self._peers.values()):
            self._send(peer, self._status(peer))

    def _status(self, peer: Peer) -> Status:
        info = self._engine.info if self._engine is not None else None
        waits = self._engine.expected_waits() if self._engine is not None else None
        # Only with the heartbeat: a message for each request would cost those that do not wait.
        entered = [number for number, run in peer.streams.items() if run.is_before_first_token]
        pace = self._seconds_per_token
        return Status(PROTOCOL_VERSION, self._state, info, self._life, waits, entered, pace)

    def _on_frames(self, frames: list[bytes]) -> None:
        identity, body = frames
        try:
            self._read(identity, body)
        except MemoryError:
            log.exception("Out of memory while reading a message of %d bytes", len(body))
            self._refuse(identity, body)

    def _refuse(self, identity: bytes, body: bytes) -> None:
        """A request that was not read is answered all the same."""
        peer, stream = self._peers.get(identity), _SUBMITTED.decode(body).stream
        if peer is not None:
            self._fail(_Run(self, peer, stream), OutOfMemory(_NO_MEMORY))

    def _read(self, identity: bytes, body: bytes) -> None:
        message = self._decoder.decode(body)
        if isinstance(message, Hello):
            self._peers[identity] = Peer(identity, time.monotonic())
        peer = self._peers.get(identity)
        if peer is not None:
            peer.heard_s = time.monotonic()
            self._on_message(peer, message)

    def _on_message(self, peer: Peer, message: ClientMessage) -> None:
        match message:
            case Submit(stream):
                self._submit(peer, stream, message.whole)
            case Abort(stream):
                if (run := peer.streams.get(stream)) is not None:
                    self._close(run)
            case StatsQuery(call):
                self._spawn(self._count(peer, call))
            case Hello():
                self._send(peer, self._status(peer))
            case Beat():
                pass

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _submit(self, peer: Peer, stream: int, request: EngineRequest) -> None:
        run = peer.streams[stream] = _Run(self, peer, stream)
        if self._engine is None:
            self._fail(run, EngineDead("the engine is still starting"))
            return
        run.opening = self._spawn(self._open(self._engine, run, request))

    async def _open(self, engine: QueuedEngine[Any], run: _Run, request: EngineRequest) -> None:
        try:
            run.entry = await engine.open(request, run.receive)
        except EngineError as error:
            self._fail(run, error)
        except MemoryError:
            log.exception("Out of memory for request %s", request.request_id)
            self._fail(run, OutOfMemory(_NO_MEMORY))
        except Exception as error:
            log.exception("Request %s failed", request.request_id)
            if lacks_threads(error):
                self._fail(run, OutOfMemory(NO_THREAD))
                return
            self._fail(run, RequestFailed(f"{type(error).__name__}: {error}"))

    def on_outcome(self, run: _Run, outcome: TokenEvent | EngineError) -> None:
        """Put an outcome into its client's message, which is sent when the step has given all it
        has."""
        if isinstance(outcome, EngineError):
            self._fail(run, outcome)
            return
        self._num_events += 1
        is_plain = outcome.finish_reason is None and outcome.logprobs is None
        is_plain = is_plain and outcome.num_restarts == run.num_restarts
        if is_plain and run.has_begun and len(outcome.token_ids) == 1:
            self._push(run, outcome.token_ids[0])
        else:
            if not run.has_begun:
                self._pace.begin(time.monotonic())
            run.has_begun, run.num_restarts = True, outcome.num_restarts
            self._pace.num_tokens += len(outcome.token_ids) - 1
            self._push(run, outcome)
        if outcome.finish_reason is not None:
            self._remove(run)

    def _push(self, run: _Run, event: int | TokenEvent) -> None:
        run.peer.events.append((run.stream, event))
        self.on_events(run.peer)

    def on_events(self, peer: Peer) -> None:
        """Send a client's events, if they are enough for a message, or soon."""
        if len(peer.events) == 1:
            self._flush_soon(peer)
        elif len(peer.events) >= MOST_TOGETHER:
            self._send_events(peer)

    def _remove(self, run: _Run) -> None:
        if run.peer.streams.pop(run.stream, None) is not None and run.has_begun:
            self._pace.end(time.monotonic())

    def _close(self, run: _Run) -> None:
        self._remove(run)
        if run.opening is not None:
            run.opening.cancel()
        if run.entry is not None and self._engine is not None:
            self._engine.close(run.entry)

    async def _count(self, peer: Peer, call: int) -> None:
        if self._engine is None:
            return  # the client learns the state from the next Status
        try:
            self._send(peer, StatsReply(call, await self._engine.stats()))
        except Exception:
            log.exception("The engine could not report its load")

    def _fail(self, run: _Run, error: EngineError) -> None:
        if isinstance(error, EngineDead) and self._state == HostState.READY:
            self._enter(HostState.DEAD)  # before the failure: nothing is to be run again here
        self._remove(run)
        run.peer.failures.append(StreamFailure(run.stream, error.code, str(error), error.retry_s))
        self._flush_soon(run.peer)

    def _flush_soon(self, peer: Peer) -> None:
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent.add(peer)

    def _flush(self) -> None:
        peers, self._unsent = self._unsent, set()
        for peer in peers:
            if peer.events or peer.failures:
                self._send_events(peer)

    def _send_events(self, peer: Peer) -> None:
        events, peer.events = peer.events, []
        self._pace.num_tokens += len(events)
        failures, peer.failures = peer.failures, []
        self._send(peer, StepMessage(events, failures))

    def _send(self, peer: Peer, message: HostMessage) -> None:
        try:
            self._socket.send([peer.identity, self._encoder.encode(message)])
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._forget(peer)

    def _forget(self, peer: Peer) -> None:
        if self._peers.pop(peer.identity, None) is not None and peer.streams:
            log.warning("A client disconnected: aborting its %d requests", len(peer.streams))
        for run in list(peer.streams.values()):
            self._close(run)

    def _silence(self, peer: Peer) -> None:
        reason = f"the client was silent for {CLIENT_SILENCE_S:.0f} s; its requests were aborted"
        log.warning("%s (%d requests)", reason, len(peer.streams))
        for run in list(peer.streams.values()):
            self._close(run)
            self._fail(run, RequestFailed(reason))
