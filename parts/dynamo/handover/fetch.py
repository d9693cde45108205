"""A decode engine's side: asks for the K/V of a prompt, and takes what comes."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import nullcontext, suppress
from typing import Final, Protocol

from engines.endpoint import socket_address
from parts.dynamo.handover.ask import PrefillAsk
from parts.dynamo.handover.channel import (
    HANDSHAKE_S,
    Channel,
    ChannelMessage,
    ConnectionLost,
    Disagreement,
    HandoverError,
    MessageKind,
    as_client,
)
from parts.dynamo.handover.idle_channels import IdleChannels
from parts.dynamo.handover.nixl import Bytes, NixlAgent
from parts.dynamo.handover.server import WAIT_S

PIECE_BYTES: Final = 4 << 20  # of blocks in a message, or one block
MOST_BYTES: Final = 64 << 20  # of one prompt's blocks in host memory, on each side
_SILENCE_S: Final = 6 * WAIT_S  # a peer that sends nothing for so long is lost

_READ_S: Final = 5.0  # a message's blocks by NIXL
_MOST_REASON: Final = 1000  # characters of a peer's in our log


class Taker(Protocol):
    """Takes blocks as they come."""

    @property
    def block_bytes(self) -> int:
        """The size of one block's content."""

    def room(self, num_bytes: int) -> memoryview:
        """Memory for the content of blocks, for this one message."""

    def take(self, keys: list[bytes], content: memoryview) -> None:
        """Take blocks with these keys; `content` lies in memory of `room`."""


class Fetch:
    """One prompt's K/V on their way; `cancel` may be called from any thread."""

    def __init__(
        self, secret: str, timeout_s: float, idle: IdleChannels, agent: NixlAgent | None = None
    ) -> None:
        self._secret, self._timeout_s, self._agent = secret, timeout_s, agent
        self._idle = idle
        self._present: socket.socket | None = None  # the connection in use
        self._is_answered = False
        self.is_cancelled = False
        self._lock = threading.Lock()

    def run(self, endpoint: str, ask: PrefillAsk, taker: Taker) -> None:
        """Hand each piece to the taker; raises HandoverError where not all came."""
        until_s = time.monotonic() + self._timeout_s
        kept = self._idle.take(endpoint)
        if kept is not None:
            try:
                self._run_over(endpoint, kept, until_s, ask, taker)
                return
            except ConnectionLost:
                # The server may have closed it while we asked: a new connection will tell.
                if self._is_answered or self.is_cancelled:
                    raise
        channel = self._connected(endpoint)
        self._run_over(endpoint, channel, until_s, ask, taker)

    def _run_over(
        self, endpoint: str, channel: Channel, until_s: float, ask: PrefillAsk, taker: Taker
    ) -> None:
        """Keep the connection where it has nothing more to say."""
        try:
            self._note(channel.connection)
            channel.send(MessageKind.ASK, ask.fields, ask.payload, within_s=HANDSHAKE_S)
            with nullcontext() if self._agent is None else self._agent.borrowed() as buffer:
                self._receive(channel, until_s, taker, buffer)
            self._note(None)
        except BaseException:
            channel.close()
            raise
        self._idle.put(endpoint, channel)

    def _connected(self, endpoint: str) -> Channel:
        try:
            family, address = socket_address(endpoint)
            connection = socket.socket(family, socket.SOCK_STREAM)
        except (OSError, ValueError) as error:
            raise HandoverError(str(error)) from error
        try:
            self._note(connection)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            handshake_s = min(HANDSHAKE_S, self._timeout_s)
            connection.settimeout(handshake_s)
            try:
                connection.connect(address)
            except OSError as error:
                raise HandoverError(f"it cannot be reached: {error}") from error
            return as_client(connection, self._secret, within_s=handshake_s)
        except BaseException:
            connection.close()
            raise

    def cancel(self) -> None:
        """End it, whatever it waits for."""
        with self._lock:
            self.is_cancelled = True
            if self._present is not None:
                with suppress(OSError):  # not connected yet, or no more
                    self._present.shutdown(socket.SHUT_RDWR)

    def _note(self, connection: socket.socket | None) -> None:
        """What `cancel` has to end from now on."""
        with self._lock:
            if self.is_cancelled:
                raise HandoverError("the request was ended")
            self._present = connection

    def _receive(
        self, channel: Channel, until_s: float, taker: Taker, buffer: Bytes | None
    ) -> None:
        """`buffer`: for what is read by NIXL, which the peer has lent until its next message."""
        block_bytes = taker.block_bytes
        most = max(PIECE_BYTES, block_bytes)
        read: tuple[list[bytes], Bytes] | None = None
        while True:
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                raise HandoverError(f"it took longer than {self._timeout_s:g} s")
            message = channel.receive(most, within_s=min(left_s, _SILENCE_S), room=taker.room)
            self._is_answered = True
            if read is not None:
                content = taker.room(len(read[1]))  # the buffer is for the next ones
                content[:] = read[1].data
                taker.take(read[0], content)
                read = None
            if message.kind is MessageKind.END:
                return
            if message.kind is MessageKind.REFUSAL:
                error = Disagreement if message.fields.get("is_lasting") else HandoverError
                raise error(f"it refused: {str(message.fields.get('reason'))[:_MOST_REASON]}")
            if message.kind is not MessageKind.BLOCKS:
                continue
            keys = _keys(message.fields.get("keys"))
            if buffer is None or "address" not in message.fields:
                _check_size(keys, len(message.payload), block_bytes)
                taker.take(keys, message.payload)
                continue
            _check_size(keys, message.fields.get("num_bytes"), block_bytes)
            read = keys, buffer[: len(keys) * block_bytes]
            self._read(message, read[1], until_s)
            channel.send(MessageKind.TAKEN, within_s=_SILENCE_S)

    def _read(self, message: ChannelMessage, into: Bytes, until_s: float) -> None:
        assert self._agent is not None
        left_s = min(until_s - time.monotonic(), _READ_S)
        address = message.fields["address"]
        self._agent.read(bytes(message.payload), address, into, within_s=left_s)


def _keys(given: object) -> list[bytes]:
    try:
        return [bytes.fromhex(each) for each in given]  # type: ignore[attr-defined]
    except (TypeError, ValueError) as error:
        raise HandoverError(f"blocks without keys: {error}") from error


def _check_size(keys: list[bytes], num_bytes: object, block_bytes: int) -> None:
    is_whole = bool(keys) and num_bytes == len(keys) * block_bytes
    if not is_whole or len(keys) * block_bytes > max(PIECE_BYTES, block_bytes):
        raise HandoverError(f"{len(keys)} blocks came as {num_bytes} bytes")
