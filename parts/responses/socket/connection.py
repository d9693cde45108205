"""`GET /v1/responses` as a WebSocket: client events are queued on their lanes and run as turns."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Final

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from parts.responses.socket.held import HeldResponses
from parts.responses.socket.turn import Line, SocketTurn
from service.errors import RequestError
from service.http.failures import ErrorAnswer, failure_of
from service.http.websocket import SOCKET, Socket
from service.known_texts import KnownTexts
from service.request import CONTEXT, RequestContext
from service.runtime import Runtime

MAX_STREAM_ID_CHARS: Final = 64
MOST_LANES: Final = 16  # of a connection, with turns at a time
MOST_KNOWN: Final = 256  # connections of an API worker whose texts are known: 128 MB
MOST_QUEUED: Final = 32  # turns of a connection that have not begun; behind them nothing is read

_CREATE: Final = "response.create"
_STEER: Final = "response.steer"


class _Head(msgspec.Struct):
    """What decides where a client event goes; its turn reads the rest."""

    type: str = ""
    stream_id: str | None = None
    previous_response_id: str | None = None


_head_of = msgspec.json.Decoder(_Head).decode


class Connections:
    """The WebSockets of an API worker: how many each caller has, and what they hold."""

    max_age_s = 3600.0

    def __init__(self, most_connections: int) -> None:
        self.held = HeldResponses()
        self._texts: OrderedDict[int, KnownTexts] = OrderedDict()
        self._most = max(most_connections // 2, 1)  # of all: others come with requests
        self._most_of_one = max(most_connections // 8, 1)
        self._of: Counter[str] = Counter()
        self._numbers = itertools.count(1)

    @contextmanager
    def place(self, caller: str) -> Iterator[int]:
        """A place for one more, and its number; raises RequestError where there is none."""
        if self._of[caller] >= self._most_of_one:
            raise _too_many(f"This caller has {self._of[caller]} WebSockets open, the limit")
        if self._of.total() >= self._most:
            raise _too_many(f"{self._of.total()} WebSockets are open, the limit")
        number = next(self._numbers)
        self._of[caller] += 1
        try:
            yield number
        finally:
            self._of[caller] -= 1
            if not self._of[caller]:
                del self._of[caller]
            self.held.leave(number)
            self._texts.pop(number, None)

    def texts(self, number: int) -> KnownTexts:
        """The texts of a connection's prompts; those of the connections used last are kept."""
        known = self._texts.setdefault(number, KnownTexts())
        self._texts.move_to_end(number)
        if len(self._texts) > MOST_KNOWN:
            self._texts.popitem(last=False)
        return known


def _too_many(message: str) -> RequestError:
    return RequestError(
        f"{message} (NIM_MAX_CONNECTIONS); use those, close some, or send POST requests.",
        status=429,
        type="rate_limit_error",
        code="too_many_connections",
        headers={"Retry-After": "1"},
    )


class SocketResponse(Response):
    """The answer to a handshake, and all that follows it."""

    def __init__(
        self, runtime: Runtime, connections: Connections, accepting: list[tuple[bytes, bytes]]
    ) -> None:
        self._runtime = runtime
        self._connections = connections
        self._accepting = accepting
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Open the WebSocket and serve it to its end; raises RequestError for one too many."""
        socket, context = scope[SOCKET], scope[CONTEXT]
        with self._connections.place(_caller(context, scope)) as number:
            start = {"type": "http.response.start", "status": 101, "headers": self._accepting}
            await send(start)
            held, app = self._connections.held, scope["app"]
            texts = partial(self._connections.texts, number)
            line = Line(number, context.id, app, scope, socket, held, texts)
            await _Connection(self._runtime, line, context, self._connections.max_age_s).serve()


def _caller(context: RequestContext, scope: Scope) -> str:
    if context.principal is not None:
        return context.principal.id
    client = scope.get("client")
    return client[0] if client else "unknown"


class _Connection:
    """One WebSocket: reads client events, runs the turns of each lane in order."""

    def __init__(
        self, runtime: Runtime, line: Line, context: RequestContext, max_age_s: float
    ) -> None:
        self._runtime = runtime
        self._line = line
        self._context = context
        self._max_age_s = max_age_s
        self._socket: Socket = line.socket
        self._lanes: dict[str | None, deque[SocketTurn]] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._num_turns = 0
        self._has_room = asyncio.Event()
        self._has_room.set()

    async def serve(self) -> None:
        """Serve until the client leaves, the server stops or the connection's time is up."""
        draining = self._runtime.lifecycle.is_draining
        reading = asyncio.create_task(self._read())
        stopping = asyncio.create_task(draining.wait())
        try:
            await asyncio.wait(
                (reading, stopping), timeout=self._max_age_s, return_when=asyncio.FIRST_COMPLETED
            )
            if reading.done():
                reading.result()
                await self._socket.close(1000)
                return
            reading.cancel()
            await self._finish_turns()
            if draining.is_set():
                await self._socket.close(1001, "the server is stopping")
            else:
                await self._refuse(None, _time_is_up(self._max_age_s))
                await self._socket.close(1000)
        finally:
            tasks = (reading, stopping, *self._running)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _read(self) -> None:
        while (message := await self._socket.receive()) is not None:
            await self._take(message)
            await asyncio.sleep(0)  # thousands of small events may have come at once
            await self._has_room.wait()

    async def _take(self, message: bytes) -> None:
        try:
            head = _head_of(message)
        except (msgspec.DecodeError, RecursionError) as error:
            why = f"The message is not a client event in JSON: {error}."
            await self._reject(None, RequestError(why, code="invalid_json"))
            return
        if head.stream_id is not None and not 0 < len(head.stream_id) <= MAX_STREAM_ID_CHARS:
            why = f"stream_id must have 1 to {MAX_STREAM_ID_CHARS} characters."
            await self._reject(None, RequestError(why, param="stream_id", code="invalid_value"))
        elif head.type == _STEER:
            await self._reject_steering(message, head)
        elif head.type != _CREATE:
            await self._reject(head.stream_id, _unknown(head.type))
        else:
            await self._queue(head.stream_id, message)

    async def _queue(self, stream_id: str | None, message: bytes) -> None:
        """Run a turn once its lane has ended the ones before."""
        lane = self._lanes.get(stream_id)
        if lane is None and len(self._lanes) >= MOST_LANES:
            why = f"{MOST_LANES} lanes of this connection have turns, the limit; wait for one."
            error = RequestError(why, param="stream_id", code="too_many_lanes", status=429)
            await self._reject(stream_id, error)
            return
        self._num_turns += 1
        turn = SocketTurn(self._line, stream_id, self._num_turns, message)
        if lane is not None:
            lane.append(turn)
        else:
            lane = self._lanes[stream_id] = deque((turn,))
            task = asyncio.create_task(self._run(stream_id, lane))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        self._look_for_room()

    async def _run(self, stream_id: str | None, lane: deque[SocketTurn]) -> None:
        try:
            while lane and not self._socket.ended.is_set():
                turn = lane.popleft()
                self._look_for_room()
                await turn.run()
        finally:
            del self._lanes[stream_id]

    def _look_for_room(self) -> None:
        """Read on only while few bodies wait: each may have megabytes."""
        num_queued = sum(map(len, self._lanes.values()))
        num_bytes = sum(turn.num_bytes for lane in self._lanes.values() for turn in lane)
        if num_queued < MOST_QUEUED and num_bytes <= self._runtime.limits.max_body_bytes:
            self._has_room.set()
        else:
            self._has_room.clear()

    async def _finish_turns(self) -> None:
        """Wait for the turns that run; those behind them are not begun."""
        for lane in self._lanes.values():
            lane.clear()
        if self._running:
            await asyncio.wait(self._running)

    async def _reject(self, stream_id: str | None, error: RequestError) -> None:
        """Answer an event that is no turn; it counts for the caller like a request."""
        try:
            await self._runtime.gate.count(self._context)
        except RequestError as refusal:
            error = refusal
        await self._refuse(stream_id, error)

    async def _refuse(self, stream_id: str | None, error: RequestError) -> None:
        failure: ErrorAnswer = failure_of(error)
        body = {"type": "error", "status": failure.kind.status, **failure.body()}
        await self._send(body, stream_id)

    async def _reject_steering(self, message: bytes, head: _Head) -> None:
        error = RequestError("This server cannot steer a running response.", code="")
        try:
            await self._runtime.gate.count(self._context)
        except RequestError as refusal:
            await self._refuse(None, refusal)
            return
        steer = msgspec.json.decode(message, type=dict[str, msgspec.Raw])
        failure = {
            "type": "response.steer.failed",
            "error": {
                "type": error.type,
                "code": "steering_not_supported",
                "message": f"{error} Wait for its end, and send the input as a new turn.",
            },
            "steer": {
                "type": _STEER,
                "previous_response_id": head.previous_response_id or "",
                "input": steer.get("input", msgspec.Raw(b'""')),
            },
        }
        await self._send(failure, None)

    async def _send(self, body: Mapping[str, object], stream_id: str | None) -> None:
        shown = body if stream_id is None else {**body, "stream_id": stream_id}
        await self._socket.send([msgspec.json.encode(shown)])


def _unknown(kind: str) -> RequestError:
    return RequestError(
        f"{kind[:64]!r} is no client event here; send response.create.",
        param="type",
        code="unknown_event",
    )


def _time_is_up(max_age_s: float) -> RequestError:
    return RequestError(
        f"The connection has been open for {max_age_s / 60:.0f} minutes, the limit; open another.",
        code="websocket_connection_limit_reached",
    )
