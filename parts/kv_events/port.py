"""One port of KV events, with the bounds of HTTP's: anyone who reaches it can connect.

A client that has asked for nothing is a stranger. It makes room for other strangers only. One that
has asked keeps its place as long as it takes what there is for it.
"""

from __future__ import annotations

import logging
import os
import selectors
import socket
from contextlib import suppress
from functools import partial
from typing import Any, Final

from engines.endpoint import socket_address
from engines.errors import EngineStartError
from engines.lines_per_address import LinesPerAddress
from engines.port_places import PortPlaces
from parts.kv_events.clients import PortClient
from parts.kv_events.history import BatchHistory
from parts.kv_events.zmtp import ProtocolError

MOST_STRANGERS: Final = 64
MOST_PEERS: Final = 64
HANDSHAKE_S: Final = 3.0
GRACE_S: Final = 1.0  # a client that takes nothing for so long makes room for another
PATIENCE_S: Final = 30.0  # and after so long it is disconnected
_LEAST_BYTES_S: Final = 500  # as for clients of HTTP
_SEND_BUFFER_BYTES: Final = 128 << 10  # of the kernel for a client; it may take twice as much
_RECEIVED_BYTES: Final = 4096  # at once
_ACCEPTED: Final = 16  # at once
_KEEPALIVE_S: Final = 60  # until a client is asked whether its machine is still there

log = logging.getLogger(__name__)


class Port:
    """Listens on one address; used by one thread alone."""

    def __init__(
        self,
        endpoint: str,
        kind: type[PortClient],
        history: BatchHistory,
        selector: selectors.BaseSelector,
    ) -> None:
        """Raises EngineStartError if the address cannot be had."""
        self._kind, self._history, self._selector = kind, history, selector
        self._listener = _listening(endpoint)
        host, number = self._listener.getsockname()[:2]
        self.endpoint = f"tcp://[{host}]:{number}" if ":" in host else f"tcp://{host}:{number}"
        self._places: PortPlaces[PortClient] = PortPlaces(MOST_STRANGERS, MOST_PEERS)
        # Since when so few bytes were taken.
        self._clients: dict[PortClient, tuple[float, int]] = {}
        self._lines = LinesPerAddress()
        self._waits_until_s = 0.0  # with connections that come
        self._listen(True)

    def __len__(self) -> int:
        return len(self._clients)

    def close(self) -> None:
        """Send what can be sent at once, and close everything."""
        for client in [*self._clients]:
            with suppress(OSError):
                client.send(self._history, 0.0)
            self._drop(client)
        self._listen(False)
        self._listener.close()

    def send(self, now_s: float) -> None:
        """Send to those who had all, and have no longer."""
        for client in [*self._clients]:
            if client.is_ready and not self._is_waited_for(client):
                self._pump(client, now_s)

    def look(self, now_s: float) -> None:
        """Disconnect those who are too slow; to be called once a second or so."""
        if self._waits_until_s and now_s >= self._waits_until_s:
            self._listen(True)
        for client, (since_s, num_taken) in [*self._clients.items()]:
            if not client.is_ready:
                if now_s - client.since_s >= HANDSHAKE_S:
                    self._drop(client, "it did not finish its handshake")
            elif not client.is_behind(self._history):
                client.taken_s = now_s
                self._clients[client] = now_s, client.num_taken
            elif now_s - since_s >= PATIENCE_S:
                if client.num_taken - num_taken < _LEAST_BYTES_S * PATIENCE_S:
                    self._drop(client, f"it did not read for {PATIENCE_S:g} s")
                else:
                    self._clients[client] = now_s, client.num_taken
            elif now_s - client.taken_s >= GRACE_S:
                self._places.rest(client)

    def _accept(self, now_s: float, _events: int) -> None:
        for _ in range(_ACCEPTED):
            try:
                connection, (address, *_) = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                message = "No subscriber of KV events can be accepted: %s"
                self._lines.warning(log, "", message, error)
                self._listen(False)
                self._waits_until_s = now_s + GRACE_S
                return
            with suppress(OSError):  # it has left already, which will show
                _prepare(connection)
            client = self._kind(connection, address, now_s)
            self._clients[client] = now_s, 0
            self._selector.register(
                connection, selectors.EVENT_READ, partial(self._serve, client=client)
            )
            dropped = self._places.enter(client, address)
            if dropped is not None:
                self._drop(dropped)
            self._pump(client, now_s)

    def _serve(self, now_s: float, events: int, client: PortClient) -> None:
        if client not in self._clients:
            return  # dropped since the selector found it
        try:
            if events & selectors.EVENT_READ:
                self._receive(client, now_s)
            if client in self._clients:
                self._pump(client, now_s)
        except ProtocolError as error:
            self._drop(client, str(error))
        except OSError:
            self._drop(client)

    def _receive(self, client: PortClient, now_s: float) -> None:
        try:
            data = client.connection.recv(_RECEIVED_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        if not data:
            self._drop(client)
            return
        had_asked = client.has_asked()
        client.receive(data, self._history, now_s)
        if client.has_asked() and not had_asked and not self._has_place(client):
            self._drop(client, "all places are taken")

    def _has_place(self, client: PortClient) -> bool:
        """Whether one that has asked for something may stay; another one may go for it."""
        if self._places.work(client):
            return True
        dropped = self._places.prove(client)
        if dropped is not None and dropped is not client:
            self._drop(dropped)
        return dropped is not client

    def _pump(self, client: PortClient, now_s: float) -> None:
        """Send a piece, and wait for the client to take more where there is more."""
        before = client.num_taken
        try:
            client.send(self._history, now_s)
        except OSError:
            self._drop(client)
            return
        is_behind = client.is_behind(self._history)
        if not client.has_asked() and not is_behind:
            self._places.rest(client)
        elif client.num_taken > before:
            self._places.work(client)
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if is_behind else 0)
        key = self._selector.get_key(client.connection)
        if key.events != wanted:
            self._selector.modify(client.connection, wanted, key.data)

    def _is_waited_for(self, client: PortClient) -> bool:
        return bool(self._selector.get_key(client.connection).events & selectors.EVENT_WRITE)

    def _drop(self, client: PortClient, reason: str = "") -> None:
        if reason:
            message = "A subscriber of KV events at %s was disconnected: %s"
            self._lines.warning(log, client.address, message, client.address, reason)
        del self._clients[client]
        self._places.leave(client)
        self._selector.unregister(client.connection)
        client.connection.close()

    def _listen(self, is_listening: bool) -> None:
        self._waits_until_s = 0.0
        is_registered = self._listener in self._selector.get_map()
        if is_listening and not is_registered:
            data: Any = self._accept
            self._selector.register(self._listener, selectors.EVENT_READ, data)
        elif is_registered and not is_listening:
            self._selector.unregister(self._listener)


def _listening(endpoint: str) -> socket.socket:
    try:
        family, address = socket_address(endpoint)
        listener = socket.create_server(address, family=family, backlog=128)
    except (OSError, ValueError) as error:
        errno = getattr(error, "errno", None)
        reason = os.strerror(errno) if errno else error
        raise EngineStartError(
            f"KV events cannot be published on {endpoint}: {reason}; use a free port of an address"
            " of this machine"
        ) from error
    listener.setblocking(False)
    return listener


def _prepare(connection: socket.socket) -> None:
    connection.setblocking(False)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    with suppress(OSError, AttributeError):  # not on every system
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_S)
