"""An authenticated connection between two engines.

Both sides prove that they know the secret before a byte of either is read as a message:

    server   magic, nonce s
    client   nonce c, HMAC(secret, "client" s c)
    server   HMAC(secret, "server" s c)

Each message is then encrypted and authenticated by AES-256-GCM, with a key of this connection and
direction and a number that is used once. Sizes are bounded, and no wait is without an end.

A large payload is encrypted in frames. So one side encrypts a frame while the other one decrypts
the frame before it, and both find it in their processor's cache.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_MAGIC: Final = b"harmonium kv 3\n"
_NONCE: Final = 32
_DIGEST: Final = "sha256"
_MAC: Final = 32
_TAG: Final = 16
_HEAD: Final = struct.Struct("<BIQ")  # kind, bytes of the fields, bytes of the payload
_MOST_FIELDS: Final = 8 << 20  # bytes: the names of 100,000 blocks
_FRAME: Final = 512 << 10  # bytes of a payload
_MOST_DEPTH: Final = 4  # of the fields: a mapping of lists or mappings of values

HANDSHAKE_S: Final = 3.0


Data = bytes | bytearray | memoryview


def memory(num_bytes: int) -> memoryview:
    """New memory, which is not cleared."""
    return np.empty(num_bytes, np.uint8).data


class HandoverError(Exception):
    """K/V were not handed over; the message says why."""


class ConnectionLost(HandoverError):
    """The other side has closed the connection, or it broke."""


class Disagreement(HandoverError):
    """The two engines do not fit each other, and will not a moment later."""


class MessageKind(IntEnum):
    """What a message is."""

    ASK = 1  # for the K/V of a prompt
    WAIT = 2  # the prompt is still being computed
    BLOCKS = 3  # some of its blocks
    END = 4  # that was all
    REFUSAL = 5  # the reason is among the fields
    TAKEN = 6  # the last blocks were read where they lay (nixl.py)


@dataclass(frozen=True, slots=True)
class ChannelMessage:
    """One message: plain values, and bytes beside them."""

    kind: MessageKind
    fields: dict[str, Any]
    payload: memoryview


class Channel:
    """One side of a connection that both sides have proved themselves on."""

    def __init__(self, connection: socket.socket, key_out: bytes, key_in: bytes) -> None:
        self.connection = connection
        self._out, self._in = _Cipher(key_out), _Cipher(key_in)

    def send(
        self,
        kind: MessageKind,
        fields: dict[str, Any] | None = None,
        payload: Data = b"",
        *,
        within_s: float,
    ) -> None:
        """Send a message; raises HandoverError where that takes longer or the other is gone."""
        encoded = json.dumps(fields or {}).encode()
        head = _HEAD.pack(kind, len(encoded), len(payload))
        until_s = time.monotonic() + within_s
        _write(self.connection, b"".join((head, self._out.sealed(encoded, head))), until_s)
        for frame in _frames(memoryview(payload)):
            _write(self.connection, self._out.sealed(frame, head), until_s)

    def receive(
        self, most_payload: int, *, within_s: float, room: Callable[[int], memoryview] = memory
    ) -> ChannelMessage:
        """Receive a message; raises HandoverError for silence, a loss, a forgery, or too much.

        `room`: makes the memory for a payload of that many bytes.
        """
        until_s = time.monotonic() + within_s
        head = _read(self.connection, _HEAD.size, until_s)
        number, num_fields, num_payload = _HEAD.unpack(head)
        if num_fields > _MOST_FIELDS or num_payload > most_payload:
            raise HandoverError(f"a message of {num_fields} + {num_payload} bytes is too large")
        encoded = bytearray(num_fields)
        payload = room(num_payload)
        for part in (memoryview(encoded), *_frames(payload)):
            sealed = self._in.room(len(part))
            _read_into(self.connection, sealed, until_s)
            self._in.open(sealed, head, part)
        try:
            return ChannelMessage(MessageKind(number), _fields(encoded), payload)
        except (TypeError, ValueError, RecursionError) as error:
            raise HandoverError(f"a message cannot be read: {error}") from error

    def close(self) -> None:
        """Close it also for a thread that waits for it."""
        with suppress(OSError):  # not connected any more
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()

    def has_news(self) -> bool:
        """Whether the other side has sent something, or is gone."""
        return self._next(0.0) is not None

    def has_message(self, *, within_s: float) -> bool:
        """Whether the other side sends something by then; False also where it leaves."""
        return bool(self._next(within_s))

    def _next(self, within_s: float) -> bytes | None:
        """A byte that is still to be received, none where it is gone; None if it was silent."""
        try:
            self.connection.settimeout(within_s)
            return self.connection.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, TimeoutError):
            return None
        except OSError:
            return b""


class _Cipher:
    """One direction of a connection: each part has a nonce, which is its number."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)
        self._num = 0
        self._room = bytearray()

    def room(self, num: int) -> memoryview:
        """Where a part of this size is sealed, until the next one: new memory costs more than
        the encryption."""
        if len(self._room) < num + _TAG:
            self._room = bytearray(num + _TAG)
        return memoryview(self._room)[: num + _TAG]

    def sealed(self, part: Data, head: bytes) -> memoryview:
        sealed = self.room(len(part))
        self._cipher.encrypt_into(self._nonce(), part, head, sealed)
        return sealed

    def open(self, sealed: memoryview, head: bytearray, part: memoryview) -> None:
        try:
            self._cipher.decrypt_into(self._nonce(), sealed, head, part)
        except InvalidTag:
            raise HandoverError("a message was changed in transit") from None

    def _nonce(self) -> bytes:
        self._num += 1
        return self._num.to_bytes(12, "little")


def _fields(encoded: bytearray) -> dict[str, Any]:
    """The fields of a message; raises ValueError, also for those that nothing of ours can print."""
    fields = dict(json.loads(encoded))
    inner: list[Any] = [fields]
    for _ in range(_MOST_DEPTH):
        inner = [
            child
            for each in inner
            for child in (each.values() if isinstance(each, dict) else each)
            if isinstance(child, dict | list)
        ]
        if not inner:
            return fields
    raise ValueError(f"it is nested more than {_MOST_DEPTH} deep")


def as_server(connection: socket.socket, secret: str) -> Channel:
    """Prove ourselves to a client; raises Disagreement where it does not know the secret."""
    until_s = time.monotonic() + HANDSHAKE_S
    ours = secrets.token_bytes(_NONCE)
    _write(connection, _MAGIC + ours, until_s)
    theirs, proof = _read(connection, _NONCE, until_s), _read(connection, _MAC, until_s)
    nonces = ours + theirs
    if not hmac.compare_digest(proof, _proof(secret, b"client", nonces)):
        raise Disagreement("it has another secret")
    _write(connection, _proof(secret, b"server", nonces), until_s)
    keys = (_proof(secret, side, nonces) for side in (b"to the client", b"to the server"))
    return Channel(connection, *keys)


def as_client(connection: socket.socket, secret: str, *, within_s: float) -> Channel:
    """Prove ourselves to a server; raises Disagreement where the two have different secrets."""
    until_s = time.monotonic() + within_s
    hello = _read(connection, len(_MAGIC) + _NONCE, until_s)
    if not hello.startswith(_MAGIC):
        raise Disagreement("it is no prefill engine of this release")
    ours = secrets.token_bytes(_NONCE)
    nonces = bytes(hello[len(_MAGIC) :]) + ours
    _write(connection, ours + _proof(secret, b"client", nonces), until_s)
    try:
        proof = _read(connection, _MAC, until_s)
    except HandoverError as error:
        raise Disagreement(f"it refused the secret ({error})") from error
    if not hmac.compare_digest(proof, _proof(secret, b"server", nonces)):
        raise Disagreement("it has another secret")
    keys = (_proof(secret, side, nonces) for side in (b"to the server", b"to the client"))
    return Channel(connection, *keys)


def _proof(secret: str, word: bytes, nonces: bytes) -> bytes:
    return hmac.digest(secret.encode(), word + b"\0" + nonces, _DIGEST)


def _frames(payload: memoryview) -> Iterator[memoryview]:
    return (payload[at : at + _FRAME] for at in range(0, len(payload), _FRAME))


def _write(connection: socket.socket, data: Data, until_s: float) -> None:
    try:
        connection.settimeout(max(until_s - time.monotonic(), 0.001))
        connection.sendall(data)
    except TimeoutError:
        raise HandoverError("it did not read for too long") from None
    except OSError as error:
        raise ConnectionLost(f"sending failed: {error}") from error


def _read(connection: socket.socket, num: int, until_s: float) -> bytearray:
    data = bytearray(num)
    _read_into(connection, memoryview(data), until_s)
    return data


def _read_into(connection: socket.socket, left: memoryview, until_s: float) -> None:
    try:
        while left:
            connection.settimeout(max(until_s - time.monotonic(), 0.001))
            received = connection.recv_into(left)
            if not received:
                raise ConnectionLost("it closed the connection")
            left = left[received:]
    except TimeoutError:
        raise HandoverError("it was silent for too long") from None
    except OSError as error:
        raise ConnectionLost(f"receiving failed: {error}") from error
