"""WebSockets on a real socket: what clients may not do with frames, and what ends a connection."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosedError
from websockets.frames import Opcode
from websockets.protocol import Protocol, Side

from auth.base import Scope as Access
from service.http import websocket
from service.http.paths import PathRow, Paths
from service.http.protocol import HEAD_PIECE_BYTES, BoundedProtocol
from service.http.websocket import FREE_CONTROLS, FREE_FRAGMENTS, SOCKET, Socket, accepting
from tests import loopback

KEY = b"dGhlIHNhbXBsZSBub25jZQ=="
HANDSHAKE = (
    b"GET /socket HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + KEY + b"\r\n"
)
END = b"\r\n\r\n"  # of a head
MOST_BYTES = 100_000
cut = threading.Event()


class Small(BoundedProtocol):
    """A server whose messages are small."""

    paths = Paths([PathRow("/socket", Access.INFERENCE, is_websocket=True)])
    max_message_bytes = MOST_BYTES
    reader_patience_s = 0.2

    @staticmethod
    def on_slow_reader() -> None:
        cut.set()


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Sends back what comes; `flood` is answered for ever, `refused` is in no handshake."""
    if SOCKET not in scope or b"refused" in scope["query_string"]:
        await send({"type": "http.response.start", "status": 403, "headers": []})
        await send({"type": "http.response.body", "body": b"plain"})
        return
    headers = accepting(Headers(scope=scope), ())
    await send({"type": "http.response.start", "status": 101, "headers": headers})
    found: Socket = scope[SOCKET]
    while (message := await found.receive()) is not None:
        while message == b"flood" and not found.ended.is_set():
            await found.send([b"x" * 10_000] * 10)
        await found.send([message])


@pytest.fixture
def port() -> Iterator[int]:
    """A server on the loop that serves users."""
    config = uvicorn.Config(
        echo, http=Small, loop="uvloop", log_config=None, lifespan="off", ws="none"
    )
    server = uvicorn.Server(config)
    cut.clear()
    with loopback.listening() as listener:
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        yield listener.getsockname()[1]
        server.should_exit = True
        thread.join(timeout=60)


Opened = Callable[[], Any]


@pytest.fixture
def opened(port: int) -> Opened:
    @asynccontextmanager
    async def open() -> AsyncIterator[ClientConnection]:
        async with connect(f"ws://{loopback.IN_URL}:{port}/socket", max_size=None) as found:
            yield found

    return open


@pytest.fixture
def raw(port: int) -> Callable[..., Awaitable[bytes]]:
    """Send pieces on one connection; everything it answers until it closes."""

    async def send(*pieces: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(loopback.ADDRESS, port)
        sent = answered = b""
        try:
            for piece in pieces:
                writer.write(piece)
                sent += piece
                if END in sent and not answered:  # a client sends no frame before
                    answered = await asyncio.wait_for(reader.readuntil(END), 60)
                await asyncio.sleep(0.02)
            return answered + await asyncio.wait_for(reader.read(), 60)
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    return send


def frame(
    opcode: Opcode, data: bytes, *, fin: bool = True, bits: int = 0, mask: int = 0x80
) -> bytes:
    """A client's frame, whose mask changes nothing."""
    size = len(data)
    head = bytes([0x80 * fin | bits | opcode, mask | min(size, 126 if size < 1 << 16 else 127)])
    if size > 125:
        head += size.to_bytes(2 if size < 1 << 16 else 8, "big")
    return head + (bytes(4) if mask else b"") + data


def close_code(answer: bytes) -> int:
    """The code of the close frame that ends an answer."""
    head, _, frames = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 101 ")
    at = frames.rindex(b"\x88")
    return int.from_bytes(frames[at + 2 : at + 4], "big")


async def test_messages_come_back_whole_in_order_and_in_fragments(opened: Opened) -> None:
    async with opened() as found:
        for message in ("a", "é" * 40_000, ""):
            await found.send(message)
            assert await found.recv() == message
        await found.send(["one, ", "two, ", "three"])
        assert await found.recv() == "one, two, three"
        for number in range(200):
            await found.send(str(number))
        assert [await found.recv() for _ in range(200)] == [str(each) for each in range(200)]
        await asyncio.wait_for(await found.ping(), 60)


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        (frame(Opcode.TEXT, b"\xc3("), 1007),
        (frame(Opcode.TEXT, b"\xed\xa0\x80"), 1007),  # half of a surrogate pair
        (frame(Opcode.TEXT, b"a", mask=0), 1002),
        (frame(Opcode.TEXT, b"a", bits=0x40), 1002),
        (frame(Opcode.TEXT, b"a", bits=0x10), 1002),
        (b"\x83\x80\0\0\0\0", 1002),  # an opcode that there is not
        (frame(Opcode.CONT, b"a"), 1002),
        (frame(Opcode.TEXT, b"a", fin=False) + frame(Opcode.TEXT, b"a"), 1002),
        (frame(Opcode.PING, b"a", fin=False), 1002),
        (b"\x89\xfe\0\x80" + bytes(4 + 128), 1002),  # a ping of 128 bytes
        (b"\x88\x81\0\0\0\0a", 1002),  # a close code of one byte
        (frame(Opcode.BINARY, b"a"), 1003),
        (frame(Opcode.TEXT, b"a" * (MOST_BYTES + 1)), 1009),
        (b"\x81\xff\x7f" + b"\xff" * 7 + bytes(4), 1009),  # 2^63 bytes, it says
        (frame(Opcode.TEXT, b"a" * 60_000, fin=False) + frame(Opcode.CONT, b"a" * 60_000), 1009),
        (frame(Opcode.PING, b"") * (FREE_CONTROLS + 10), 1008),
        (
            frame(Opcode.TEXT, b"", fin=False)
            + frame(Opcode.CONT, b"a", fin=False) * 2 * FREE_FRAGMENTS,
            1008,
        ),
        (frame(Opcode.CLOSE, b"\x03\xe8"), 1000),
    ],
)
async def test_a_frame_that_is_not_allowed_ends_the_connection_with_its_code(
    raw: Callable[..., Awaitable[bytes]], frames: bytes, code: int
) -> None:
    assert close_code(await raw(HANDSHAKE + b"\r\n", frames)) == code


async def test_a_handshake_may_come_in_any_pieces(
    raw: Callable[..., Awaitable[bytes]],
) -> None:
    head = HANDSHAKE + b"\r\n"
    pieces = [head[start : start + 40] for start in range(0, len(head), 40)]
    assert close_code(await raw(*pieces, frame(Opcode.CLOSE, b"\x03\xe8"))) == 1000


async def test_a_long_head_whose_upgrade_lies_across_two_pieces_opens_one(
    raw: Callable[..., Awaitable[bytes]],
) -> None:
    before = HANDSHAKE.index(b"Upgrade: websocket")
    filler = b"X-Filler: " + b"a" * (HEAD_PIECE_BYTES - before - 20) + b"\r\n"
    head = HANDSHAKE[:before] + filler + HANDSHAKE[before:]
    assert head[:HEAD_PIECE_BYTES].endswith(b"Upgrade:")
    assert close_code(await raw(head + b"\r\n", frame(Opcode.CLOSE, b"\x03\xe8"))) == 1000


@pytest.mark.parametrize(
    "head",
    [
        HANDSHAKE.replace(b"/socket", b"/other"),
        HANDSHAKE.replace(b"GET", b"POST"),
        HANDSHAKE.replace(b"Upgrade: websocket", b"Upgrade: h2c"),
        HANDSHAKE.replace(b"/socket", b"/socket?refused"),
    ],
)
async def test_what_opens_none_is_answered_like_any_request(
    raw: Callable[..., Awaitable[bytes]], head: bytes
) -> None:
    answer = await raw(head + b"Connection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert answer.endswith(b"plain\r\n0\r\n\r\n")


async def test_a_refused_handshake_leaves_the_connection_to_the_next_request(
    raw: Callable[..., Awaitable[bytes]],
) -> None:
    refused = HANDSHAKE.replace(b"/socket", b"/socket?refused") + b"\r\n"
    bye = frame(Opcode.CLOSE, b"\x03\xe8")
    answer = await raw(refused, HANDSHAKE + b"\r\n", bye)
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert close_code(answer[answer.index(b"HTTP/1.1 101 ") :]) == 1000


async def test_a_client_that_does_not_read_is_cut(port: int) -> None:
    with socket.create_connection((loopback.ADDRESS, port)) as client:
        client.sendall(HANDSHAKE + b"\r\n" + b"")
        assert client.recv(12) == b"HTTP/1.1 101"
        client.sendall(frame(Opcode.TEXT, b"flood"))
        assert await asyncio.to_thread(cut.wait, 60)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Socket, "ping_s", 0.05)
    monkeypatch.setattr(Socket, "patience_s", 0.05)


@pytest.mark.usefixtures("hasty")
async def test_a_client_that_answers_no_ping_is_gone(
    raw: Callable[..., Awaitable[bytes]],
) -> None:
    answer = await raw(HANDSHAKE + b"\r\n")
    assert answer.endswith(b"\x89\x00" * Socket.most_unanswered)


@pytest.mark.usefixtures("hasty")
async def test_one_that_answers_them_stays(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    original = Socket._tick

    def tick(self: Socket) -> None:
        asked.append(1)
        original(self)

    monkeypatch.setattr(Socket, "_tick", tick)
    async with opened() as found:
        while len(asked) < 3 * Socket.most_unanswered:
            await asyncio.sleep(0.02)
        await found.send("still here")
        assert await found.recv() == "still here"


@pytest.mark.usefixtures("hasty")
async def test_a_message_that_does_not_come_whole_ends_the_connection(port: int) -> None:
    reader, writer = await asyncio.open_connection(loopback.ADDRESS, port)
    writer.write(HANDSHAKE + b"\r\n" + b"")
    await reader.readuntil(b"\r\n\r\n")
    writer.write(frame(Opcode.TEXT, b"a" * 5000)[:3000])

    async def answer_pings() -> None:
        while True:
            writer.write(b"\0")  # one byte more of the message each time
            await asyncio.sleep(0.02)

    trickling = asyncio.create_task(answer_pings())
    answer = await asyncio.wait_for(reader.read(), 60)
    trickling.cancel()
    writer.close()
    assert int.from_bytes(answer[answer.rindex(b"\x88") + 2 :][:2], "big") == 1008


async def test_what_came_at_once_is_parsed_in_many_turns_of_the_loop(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    original = Protocol.receive_data

    def receive_data(self: Any, data: bytes) -> None:
        if self.side is Side.SERVER:
            sizes.append(len(data))
        original(self, data)

    monkeypatch.setattr(Protocol, "receive_data", receive_data)
    async with opened() as found:
        await found.send("a" * MOST_BYTES)
        assert len(await found.recv()) == MOST_BYTES
    assert max(sizes) <= websocket.PIECE_BYTES
    assert len(sizes) > MOST_BYTES // websocket.PIECE_BYTES


async def test_the_end_of_the_application_ends_the_connection(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(self: Socket) -> None:
        raise RuntimeError("it fails")

    monkeypatch.setattr(Socket, "receive", nothing)
    async with opened() as found:
        with pytest.raises(ConnectionClosedError) as closed:
            await found.recv()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1011
