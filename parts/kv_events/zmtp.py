"""ZMTP 3.0, the protocol of ZeroMQ's sockets, for a server that sends much and takes little.

libzmq bounds what waits for a peer in messages, and bounds no connections. Here the server decides
on both: it sends with `send`, and feeds what it receives to a Reader, which takes small messages
only. Every peer since libzmq 4.0 speaks this version.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_MORE, _LONG, _COMMAND = 1, 2, 4  # flags of a frame
_VERSION: Final = 10
_MECHANISM: Final = slice(12, 32)
_NULL: Final = b"NULL".ljust(20, b"\0")
_GREETING_BYTES: Final = 64
GREETING: Final = (b"\xff" + bytes(8) + b"\x7f\x03\x00" + _NULL).ljust(_GREETING_BYTES, b"\0")

MOST_FRAME_BYTES: Final = 1024  # that a peer may send: topics have 256, requests 8
MOST_FRAMES: Final = 4  # of a message


class ProtocolError(Exception):
    """A peer does not speak ZMTP 3, or sends more than it may; the message says what."""


@dataclass(frozen=True, slots=True)
class PeerReady:
    """The peer's handshake is done."""

    socket_type: bytes


@dataclass(frozen=True, slots=True)
class Ping:
    """The peer wants `pong` of this."""

    context: bytes


Message = tuple[bytes, ...]  # its frames
Event = PeerReady | Ping | Message


def head(num_bytes: int, *, is_last: bool = True) -> bytes:
    """What comes before the content of a frame."""
    return _head(num_bytes, 0 if is_last else _MORE)


def frame(content: bytes, *, is_last: bool = True) -> bytes:
    return head(len(content), is_last=is_last) + content


def ready(socket_type: bytes) -> bytes:
    """The command that ends our side of the handshake."""
    name = b"Socket-Type"
    value = bytes([len(name)]) + name + len(socket_type).to_bytes(4, "big") + socket_type
    return _command(b"READY", value)


def pong(context: bytes) -> bytes:
    return _command(b"PONG", context)


class Reader:
    """What one peer sends, in pieces as they come."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._is_greeted = self._is_ready = False
        self._frames: list[bytes] = []  # of a message that is not whole

    def feed(self, data: bytes) -> Iterator[Event]:
        """What is whole now; raises ProtocolError."""
        self._data += data
        if not self._is_greeted and not self._take_greeting():
            return
        while (found := self._take_frame()) is not None:
            flags, content = found
            event = self._command(content) if flags & _COMMAND else self._message(flags, content)
            if event is not None:
                yield event

    def _take_greeting(self) -> bool:
        given = self._data
        begins = given[:1] == b"\xff" and (len(given) < 10 or given[9] & 1)
        if given and not begins:
            raise ProtocolError("it does not speak ZMTP")
        if len(given) > _VERSION and given[_VERSION] < 3:
            raise ProtocolError("it speaks an older version than ZMTP 3")
        if len(given) < _GREETING_BYTES:
            return False
        if given[_MECHANISM] != _NULL:
            raise ProtocolError("it wants another mechanism than NULL")
        del given[:_GREETING_BYTES]
        self._is_greeted = True
        return True

    def _take_frame(self) -> tuple[int, bytes] | None:
        """Flags and content of the next frame; None while it is not whole."""
        given = self._data
        if not given:
            return None
        flags = given[0]
        if flags > _MORE + _LONG + _COMMAND:
            raise ProtocolError(f"a frame has flags {flags}")
        begin = 9 if flags & _LONG else 2
        if len(given) < begin:
            return None
        size = int.from_bytes(given[1:begin], "big")
        if size > MOST_FRAME_BYTES:
            raise ProtocolError(f"a frame of {size} bytes is too large")
        if len(given) < begin + size:
            return None
        content = bytes(given[begin : begin + size])
        del given[: begin + size]
        return flags, content

    def _message(self, flags: int, content: bytes) -> Message | None:
        if not self._is_ready:
            raise ProtocolError("a message came before the handshake's end")
        self._frames.append(content)
        if len(self._frames) > MOST_FRAMES:
            raise ProtocolError(f"a message has more than {MOST_FRAMES} frames")
        if flags & _MORE:
            return None
        message, self._frames = tuple(self._frames), []
        return message

    def _command(self, content: bytes) -> Event | None:
        name, rest = content[1 : 1 + content[0]] if content else b"", content[1 + content[0] :]
        if not self._is_ready:
            if name != b"READY":
                raise ProtocolError("its handshake does not end in READY")
            self._is_ready = True
            return PeerReady(_properties(rest).get(b"socket-type", b""))
        if name == b"PING":
            return Ping(rest[2:18])  # after the time to live
        if name in (b"SUBSCRIBE", b"CANCEL"):  # of later versions
            return ((b"\1" if name == b"SUBSCRIBE" else b"\0") + rest,)
        return None


def _properties(given: bytes) -> dict[bytes, bytes]:
    found = {}
    while given:
        after_name = 1 + given[0]
        name, size = given[1:after_name], given[after_name : after_name + 4]
        end = after_name + 4 + int.from_bytes(size, "big")
        if len(size) < 4 or end > len(given):
            raise ProtocolError("its READY cannot be read")
        found[name.lower()] = given[after_name + 4 : end]
        given = given[end:]
    return found


def _command(name: bytes, content: bytes) -> bytes:
    whole = bytes([len(name)]) + name + content
    return _head(len(whole), _COMMAND) + whole


def _head(num_bytes: int, flags: int) -> bytes:
    if num_bytes < 256:
        return bytes([flags, num_bytes])
    return bytes([flags | _LONG]) + num_bytes.to_bytes(8, "big")
