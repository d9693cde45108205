"""A prefill engine's side: computes prompts that others ask for, and sends their K/V meanwhile.

A thread for each connection, which asks for one prompt after the other. The prompts are computed as
any request is, behind the engine's queue. A connection that no prompt uses is closed after a while,
or when a peer needs its place. Those that have not proved that they know the secret have places of
their own.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, suppress
from typing import Any, Final, Protocol

import numpy as np

from engines.endpoint import socket_address
from engines.errors import EngineError, EngineStartError
from engines.lines_per_address import LinesPerAddress
from engines.port_places import PortPlaces
from parts.dynamo.handover.ask import MOST_TOKEN_BYTES, Fingerprint, PrefillAsk, differences
from parts.dynamo.handover.channel import (
    HANDSHAKE_S,
    Channel,
    Disagreement,
    HandoverError,
    MessageKind,
    as_server,
)
from parts.dynamo.handover.idle_channels import IDLE_S
from parts.dynamo.handover.nixl import NixlAgent
from parts.dynamo.handover.spec import KvHandover

WAIT_S: Final = 0.5  # between two messages while a prompt is computed
_SEND_S: Final = 10.0  # for one message: a peer that does not read is let go
_STOP_S: Final = 2.0
_MOST_STRANGERS: Final = 64  # connections; each has a thread for HANDSHAKE_S at most
_MOST_PEERS: Final = 64

Piece = tuple[list[bytes], memoryview]  # keys of blocks, and their content

log = logging.getLogger(__name__)


class KvSource(Protocol):
    """The engine whose K/V are sent."""

    @property
    def fingerprint(self) -> Fingerprint:
        """What a peer's engine has to equal."""

    @property
    def most_bytes(self) -> int:
        """The size of the largest piece."""

    def serve(self, ask: PrefillAsk) -> AbstractContextManager[Served]:
        """The K/V of a prompt, for as long as they are sent; in any thread."""


class Served(Protocol):
    """One prompt, whose blocks are sent as they are computed."""

    @property
    def is_cached(self) -> bool:
        """Whether nothing has to be computed."""

    async def compute(self) -> None:
        """Compute the prompt; raises EngineError."""

    def note_computed(self, computing: Future[None]) -> None:
        """Take note that `compute` has ended."""

    def pieces(self, every_s: float) -> Iterator[Piece | None]:
        """The blocks, some at a time; None where there were none for so long. Raises EngineError of
        `compute`, and HandoverError."""


class HandoverServer:
    """Listens on one address, for peers that know the secret."""

    def __init__(self, settings: KvHandover) -> None:
        self._settings = settings
        self._listener: socket.socket | None = None
        self._connections: dict[socket.socket, threading.Thread] = {}
        self._places: PortPlaces[socket.socket] = PortPlaces(_MOST_STRANGERS, _MOST_PEERS)
        self._lock = threading.Lock()  # guards both
        self._of_strangers, self._of_peers = LinesPerAddress(), LinesPerAddress()  # in the log
        self._agent: NixlAgent | None = None

    def bind(self) -> None:
        """Take the address; raises EngineStartError if it cannot be had."""
        endpoint = self._settings.endpoint or ""
        try:
            family, address = socket_address(endpoint)
            self._listener = socket.create_server(address, family=family, backlog=64)
        except (OSError, ValueError) as error:
            raise EngineStartError(
                f"K/V cannot be handed over at {endpoint}: {error}; use a free port of an address"
                " of this machine"
            ) from error

    def serve(self, source: KvSource, loop: asyncio.AbstractEventLoop) -> None:
        """Take connections from now on; `loop` is the engine's. Raises EngineStartError where NIXL
        is wanted and cannot be used."""
        listener = self._listener
        assert listener is not None
        if self._settings.transport == "nixl":
            self._agent = NixlAgent(source.most_bytes)

        def accept() -> None:
            while True:
                try:
                    connection, peer = listener.accept()
                except OSError:
                    if self._listener is None:
                        return
                    time.sleep(WAIT_S)  # no file descriptor is left, for the moment
                    continue
                self._take(connection, peer[:2], source, loop)

        threading.Thread(target=accept, name="kv-handover", daemon=True).start()
        log.info("K/V are handed over at %s", self._settings.endpoint)

    def stop(self) -> None:
        """Give the address back, and end all connections; not in the engine's loop, which the
        threads need for that."""
        listener, self._listener = self._listener, None
        if listener is not None:
            _close(listener)
        with self._lock:
            connections = {**self._connections}
        for connection, thread in connections.items():
            _close(connection)
            thread.join(_STOP_S)

    def _take(
        self,
        connection: socket.socket,
        peer: tuple[str, int],
        source: KvSource,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        message = "K/V were not handed over to %s port %d: %s"

        def answer() -> None:
            lines = self._of_strangers
            try:
                channel = self._proved(connection)
                lines = self._of_peers
                self._serve_one(channel, source, loop)
            except HandoverError as error:
                lines.warning(log, peer[0], message, *peer, error)
            except Exception:
                log.exception(message, *peer, "of a fault of ours")
            finally:
                with self._lock:
                    self._connections.pop(connection, None)
                    self._places.leave(connection)
                _close(connection)

        thread = threading.Thread(target=answer, name="kv-handover-peer", daemon=True)
        with self._lock:
            is_taken = self._listener is not None and _has_started(thread)
            if is_taken:  # `stop` joins whatever is among the connections
                self._connections[connection] = thread
                _end(self._places.enter(connection, peer[0]))
        if not is_taken:
            connection.close()

    def _proved(self, connection: socket.socket) -> Channel:
        """A connection to a peer that knows the secret, and has a place; raises HandoverError."""
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        channel = as_server(connection, self._settings.secret)
        with self._lock:
            dropped = self._places.prove(connection)
            if dropped is connection:
                raise HandoverError("there is no place for it")
            _end(dropped)  # the peer that has it connects again
        return channel

    def _serve_one(
        self, channel: Channel, source: KvSource, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._answer(channel, source, loop)
        while self._is_asked_again(channel):
            self._answer(channel, source, loop)

    def _is_asked_again(self, channel: Channel) -> bool:
        connection = channel.connection
        with self._lock:
            self._places.rest(connection)
        is_asked = channel.has_message(within_s=2 * IDLE_S)
        with self._lock:
            is_kept = self._places.work(connection)
        return is_asked and is_kept

    def _answer(self, channel: Channel, source: KvSource, loop: asyncio.AbstractEventLoop) -> None:
        ask = PrefillAsk.read(channel.receive(MOST_TOKEN_BYTES, within_s=HANDSHAKE_S))
        if reason := differences(source.fingerprint, ask.fingerprint):
            fields = {"reason": reason, "is_lasting": True}
            channel.send(MessageKind.REFUSAL, fields, within_s=_SEND_S)
            raise Disagreement(reason)
        agent = self._agent if ask.takes_nixl else None
        try:
            with source.serve(ask) as served:
                _send(channel, served, loop, agent)
        except EngineError as error:
            fields = {"reason": str(error), "is_lasting": False}
            channel.send(MessageKind.REFUSAL, fields, within_s=_SEND_S)
            raise HandoverError(str(error)) from error
        channel.send(MessageKind.END, within_s=_SEND_S)


def _send(
    channel: Channel, served: Served, loop: asyncio.AbstractEventLoop, agent: NixlAgent | None
) -> None:
    """Have the loop compute, and send what there is; not to a peer that has left."""
    computing: Future[None] | None = None
    if not served.is_cached:
        computing = asyncio.run_coroutine_threadsafe(served.compute(), loop)
        computing.add_done_callback(served.note_computed)
    try:
        for piece in served.pieces(WAIT_S):
            if piece is None:
                if channel.has_news():
                    raise HandoverError("the decode worker no longer waits")
                channel.send(MessageKind.WAIT, within_s=_SEND_S)
                continue
            keys, content = piece
            names = {"keys": [key.hex() for key in keys]}
            if agent is not None:
                _lend(agent, channel, names, content)
            else:
                channel.send(MessageKind.BLOCKS, names, content, within_s=_SEND_S)
    finally:
        if computing is not None:
            computing.cancel()


def _lend(agent: NixlAgent, channel: Channel, names: dict[str, Any], content: memoryview) -> None:
    """Let the peer read the content by NIXL.

    It uses what it has read when the next message comes, and so not what it read too late.
    """
    with agent.borrowed() as buffer:
        buffer[: len(content)] = np.frombuffer(content, np.uint8)
        where = {"address": buffer.ctypes.data, "num_bytes": len(content)}
        channel.send(MessageKind.BLOCKS, {**names, **where}, agent.described(), within_s=_SEND_S)
        if channel.receive(0, within_s=_SEND_S).kind is not MessageKind.TAKEN:
            raise HandoverError("the decode worker did not read the blocks")


def _has_started(thread: threading.Thread) -> bool:
    try:
        thread.start()
    except RuntimeError:  # the machine has no room for another one
        return False
    return True


def _end(connection: socket.socket | None) -> None:
    """Have its thread close it."""
    if connection is not None:
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


def _close(connection: socket.socket) -> None:
    """Close it also for a thread that waits for it."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
