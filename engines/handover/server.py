"""A prefill engine's side: computes prompts that others ask for, and sends their K/V.

A thread for each connection, which asks for one prompt. The prompt is computed as any request is,
behind the engine's queue.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, TimeoutError
from contextlib import suppress
from typing import Any, Final, Protocol

import numpy as np

from engines.errors import EngineError, EngineStartError
from engines.handover.ask import MOST_TOKEN_BYTES, Ask, Fingerprint, differences
from engines.handover.channel import (
    HANDSHAKE_S,
    Channel,
    Disagreement,
    HandoverError,
    Kind,
    as_server,
)
from engines.handover.endpoint import socket_address
from engines.handover.nixl import NixlAgent
from engines.spec import KvHandover

WAIT_S: Final = 0.5  # between two messages while a prompt is computed
_SEND_S: Final = 10.0  # for one message: a peer that does not read is let go
_STOP_S: Final = 2.0
_MOST_CONNECTIONS: Final = 64

Piece = tuple[list[bytes], memoryview]  # keys of blocks, and their content

log = logging.getLogger(__name__)


class Source(Protocol):
    """The engine whose K/V are sent."""

    @property
    def fingerprint(self) -> Fingerprint:
        """What a peer's engine has to equal."""
        ...

    @property
    def most_bytes(self) -> int:
        """The size of the largest piece."""
        ...

    async def compute(self, ask: Ask) -> None:
        """Compute the prompt, so that its blocks are cached; raises EngineError."""
        ...

    def pieces(self, ask: Ask) -> Iterator[Piece]:
        """The blocks that are cached, some at a time, in any thread."""
        ...


class HandoverServer:
    """Listens on one address, for peers that know the secret."""

    def __init__(self, settings: KvHandover) -> None:
        self._settings = settings
        self._listener: socket.socket | None = None
        self._connections: dict[socket.socket, threading.Thread] = {}
        self._lock = threading.Lock()  # guards _connections
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

    def serve(self, source: Source, loop: asyncio.AbstractEventLoop) -> None:
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
                self._take(connection, f"{peer[0]}:{peer[1]}", source, loop)

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
        peer: str,
        source: Source,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        def answer() -> None:
            try:
                self._answer(connection, source, loop)
            except HandoverError as error:
                log.warning("K/V were not handed over to %s: %s", peer, error)
            except Exception:
                log.exception("K/V were not handed over to %s", peer)
            finally:
                with self._lock:
                    self._connections.pop(connection, None)
                _close(connection)

        thread = threading.Thread(target=answer, name="kv-handover-peer", daemon=True)
        with self._lock:
            has_room = len(self._connections) < _MOST_CONNECTIONS
            if has_room:
                self._connections[connection] = thread
        if has_room:
            thread.start()
        else:
            connection.close()

    def _answer(
        self, connection: socket.socket, source: Source, loop: asyncio.AbstractEventLoop
    ) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        channel = as_server(connection, self._settings.secret)
        ask = Ask.read(channel.receive(MOST_TOKEN_BYTES, within_s=HANDSHAKE_S))
        if reason := differences(source.fingerprint, ask.fingerprint):
            fields = {"reason": reason, "is_lasting": True}
            channel.send(Kind.REFUSAL, fields, within_s=_SEND_S)
            raise Disagreement(reason)
        try:
            _follow(channel, lambda: source.compute(ask), loop)
        except EngineError as error:
            fields = {"reason": str(error), "is_lasting": False}
            channel.send(Kind.REFUSAL, fields, within_s=_SEND_S)
            raise HandoverError(str(error)) from error
        for keys, content in source.pieces(ask):
            names = {"keys": [key.hex() for key in keys]}
            if self._agent is not None and ask.takes_nixl:
                _lend(self._agent, channel, names, content)
            else:
                channel.send(Kind.BLOCKS, names, content, within_s=_SEND_S)
        channel.send(Kind.END, within_s=_SEND_S)


def _lend(agent: NixlAgent, channel: Channel, names: dict[str, Any], content: memoryview) -> None:
    """Let the peer read the content by NIXL.

    It uses what it has read when the next message comes, and so not what it read too late.
    """
    with agent.borrowed() as buffer:
        buffer[: len(content)] = np.frombuffer(content, np.uint8)
        where = {"address": buffer.ctypes.data, "num_bytes": len(content)}
        channel.send(Kind.BLOCKS, {**names, **where}, agent.described(), within_s=_SEND_S)
        if channel.receive(0, within_s=_SEND_S).kind is not Kind.TAKEN:
            raise HandoverError("it did not read the blocks")


def _follow(
    channel: Channel,
    compute: Callable[[], Coroutine[Any, Any, None]],
    loop: asyncio.AbstractEventLoop,
) -> None:
    """Have the loop compute, and tell the peer that it has to wait; not for one that has left."""
    computing: Future[None] = asyncio.run_coroutine_threadsafe(compute(), loop)
    try:
        while True:
            try:
                return computing.result(WAIT_S)
            except TimeoutError:
                if channel.has_news:
                    raise HandoverError("it does not wait any more") from None
                channel.send(Kind.WAIT, within_s=_SEND_S)
    finally:
        computing.cancel()


def _close(connection: socket.socket) -> None:
    """Close it also for a thread that waits for it."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
