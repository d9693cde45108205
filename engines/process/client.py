"""An engine in another process, behind the same contract."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncGenerator, Callable
from functools import partial
from pathlib import Path
from typing import Final

import zmq

from engines.base import (
    NO_WAIT,
    EngineInfo,
    EngineRequest,
    EngineStats,
    ExpectedWait,
    OnEntered,
    TokenEvent,
    ignore,
)
from engines.errors import EngineDead, EngineDraining, EngineStartError
from engines.process.stream import Stream, Unread
from engines.process.wire import (
    HEARTBEAT_S,
    PROTOCOL_VERSION,
    Abort,
    Beat,
    HostMessage,
    HostState,
    Link,
    StatsQuery,
    StatsReply,
    Status,
    StepMessage,
    Submit,
    error_from,
)
from engines.validation import check_capabilities

STATS_TIMEOUT_S: Final = 2.0

log = logging.getLogger("harmonium.limits")


def _no_explanation() -> str | None:
    return None


def _log_cut(request_id: str, num_bytes: int) -> None:
    log.warning(
        "Request %s was ended: its client reads too slowly (%d KiB of the answer waited).",
        *(request_id, num_bytes >> 10),
    )


class EngineClient:
    """Implements engines.base.Engine over the socket of an engine process.

    Any number of clients share one process. When it dies, every open stream raises
    EngineDead at once; the client connects again by itself and serves as soon as an
    engine answers. `explain` may add what the supervisor knows of a death.

    drain() and stop() are about this client's own requests: the process is the
    supervisor's to stop.
    """

    def __init__(
        self,
        address: str,
        *,
        start_timeout_s: float = 600.0,
        heartbeat_timeout_s: float = 5.0,
        explain: Callable[[], str | None] = _no_explanation,
        unread: Unread | None = None,
    ) -> None:
        """`unread`: limits the buffers of slow readers, of several clients together if shared."""
        self._unread = unread or Unread()
        self._address = address
        self._start_timeout_s = start_timeout_s
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._explain = explain
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._link: Link | None = None
        self._watching: asyncio.Task[None] | None = None
        self._status: Status | None = None  # None while no host has answered
        self._heard_s = 0.0
        self._reason = "the engine client has not been started"
        self._info: EngineInfo | None = None
        self._life = 0
        self._changed = asyncio.Event()  # a status has come
        self._streams: dict[int, Stream] = {}
        self._on_entered: dict[int, OnEntered] = {}  # of the same
        self._calls: dict[int, asyncio.Future[EngineStats]] = {}
        self._numbers = itertools.count(1)
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_draining = False

    @property
    def folder(self) -> Path:
        """The private folder of the engine's socket; it lasts as long as the server."""
        return Path(self._address.removeprefix("ipc://")).parent

    @property
    def info(self) -> EngineInfo:
        if self._info is None:
            raise EngineDead(self._why_dead())
        return self._info

    @property
    def life(self) -> int:
        return self._life

    @property
    def pace(self) -> float | None:
        return self._status.pace if self._status is not None else None

    @property
    def is_ready(self) -> bool:
        return self._link is not None and self._state == HostState.READY

    async def start(self) -> None:
        """Connect and wait until the engine is ready; raises EngineStartError if it never is."""
        self._context = zmq.Context()
        self._reason = "the engine process does not respond"
        self._connect()
        self._watching = asyncio.create_task(self._watch(), name="engine-client")
        try:
            async with asyncio.timeout(self._start_timeout_s):
                await self._until_ready()
        except TimeoutError:
            why = f"{self._why_dead()} ({self._start_timeout_s:g} s at {self._address})"
            await self.stop()
            raise EngineStartError(why) from None
        except BaseException:
            await self.stop()
            raise

    async def generate(
        self, request: EngineRequest, on_entered: OnEntered = ignore
    ) -> AsyncGenerator[TokenEvent, None]:
        """Yield the request's tokens; events that wait for a slow reader come as one.

        Raises Paused when too much waits for the reader, once it has read that: the engine has
        dropped the request, and a request for the rest of the answer continues.
        """
        if self._is_draining or self._state == HostState.DRAINING:
            raise EngineDraining("the engine is stopping and takes no new requests")
        link = self._ready_link()
        check_capabilities(request, self.info.capabilities)
        number = next(self._numbers)
        stream = Stream(
            self._unread, partial(self._close, number), partial(_log_cut, request.request_id)
        )
        self._streams[number] = stream
        self._on_entered[number] = on_entered
        self._idle.clear()
        try:
            link.send(Submit.of(number, request))
            while True:
                event = await stream.next()
                yield event
                if event.finish_reason is not None:
                    return
        finally:
            del self._on_entered[number]
            stream.close()
            self._close(number)

    async def stats(self) -> EngineStats:
        """Ask the engine for its counts; raises EngineDead when it does not answer in time."""
        link = self._ready_link()
        number = next(self._numbers)
        call: asyncio.Future[EngineStats] = asyncio.get_running_loop().create_future()
        self._calls[number] = call
        try:
            link.send(StatsQuery(number))
            async with asyncio.timeout(STATS_TIMEOUT_S):
                return await call
        except TimeoutError:
            raise EngineDead(f"the engine gave no stats within {STATS_TIMEOUT_S:g} s") from None
        finally:
            del self._calls[number]

    def expected_wait(self, tenant: str) -> ExpectedWait:
        waits = None if self._status is None else self._status.waits
        return NO_WAIT if waits is None else waits.of(tenant)

    async def check_health(self) -> None:
        """Raise EngineDead unless the last heartbeat says that the engine serves; no round trip."""
        self._ready_link()

    async def drain(self) -> None:
        self._is_draining = True
        await self._idle.wait()

    async def stop(self) -> None:
        watching, self._watching = self._watching, None
        if watching is not None:
            watching.cancel()
            await asyncio.wait([watching])
        self._disconnect("the server is shutting down")
        context, self._context = self._context, None
        if context is not None:
            context.destroy(linger=0)

    @property
    def _state(self) -> HostState | None:
        return self._status.state if self._status is not None else None

    def _ready_link(self) -> Link:
        if not self.is_ready:
            raise EngineDead(self._why_dead())
        assert self._link is not None
        return self._link

    def _why_dead(self) -> str:
        if self._state not in (None, HostState.STARTING):
            return f"the engine is {self._state}"
        told = self._explain()  # of a restart: why the last engine ended
        return told or (self._reason if self._state is None else f"the engine is {self._state}")

    async def _until_ready(self) -> None:
        while (status := self._status) is None or status.state != HostState.READY:
            self._changed.clear()
            await self._changed.wait()
        if status.version != PROTOCOL_VERSION:
            raise EngineStartError(
                f"the engine process speaks version {status.version} of the protocol and this "
                f"client version {PROTOCOL_VERSION}; start both from one release"
            )

    def _connect(self) -> None:
        assert self._context is not None
        self._link = Link(self._context, self._address, self._on_message, self._on_closed)

    def _disconnect(self, reason: str) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()
        self._status, self._reason = None, reason
        for stream in self._streams.values():
            stream.fail(EngineDead(f"{self._why_dead()}; send the request again"))
        self._streams.clear()
        self._idle.set()
        for call in self._calls.values():
            if not call.done():
                call.set_exception(EngineDead(self._why_dead()))

    def _on_closed(self, reason: str) -> None:
        self._life = 0
        self._on_lost(reason)

    def _on_lost(self, reason: str) -> None:
        # A new socket for every connection: nothing meant for a dead host reaches its successor.
        self._disconnect(reason)
        self._connect()

    def _on_message(self, message: HostMessage) -> None:
        self._heard_s = time.monotonic()
        match message:
            case StepMessage():
                self._on_step(message)
            case Status():
                self._on_status(message)
            case StatsReply(number, stats):
                call = self._calls.get(number)
                if call is not None and not call.done():
                    call.set_result(stats)

    def _on_step(self, step: StepMessage) -> None:
        streams = self._streams
        for number, event in step.events:
            stream = streams.get(number)  # None: aborted here while the event was on its way
            if stream is None:
                continue
            if isinstance(event, int):
                stream.push_token(event)
            else:
                stream.push(event)
                if event.finish_reason is not None:
                    self._forget(number)
        for failure in step.failures:
            if (stream := self._forget(failure.stream)) is not None:
                stream.fail(error_from(failure.code, failure.message, failure.retry_s))

    def _on_status(self, status: Status) -> None:
        self._status = status
        self._info = status.info or self._info
        self._life = status.life
        for number in status.entered:
            self._on_entered.get(number, ignore)()
        self._changed.set()

    def _forget(self, number: int) -> Stream | None:
        stream = self._streams.pop(number, None)
        if not self._streams:
            self._idle.set()
        return stream

    def _close(self, number: int) -> None:
        is_open = self._forget(number) is not None
        if is_open and self._link is not None:
            self._link.send(Abort(number))

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            if self._link is None or self._status is None:
                continue  # ZeroMQ is connecting, with our Hello in its queue
            self._link.send(Beat())
            if self._is_silent():
                self._link.read_pending()  # we may be the one who slept
            if self._link is not None and self._status is not None and self._is_silent():
                self._on_lost(f"the engine did not respond for {self._heartbeat_timeout_s:g} s")

    def _is_silent(self) -> bool:
        return time.monotonic() - self._heard_s > self._heartbeat_timeout_s
