"""Clients that are slow or send too much, on a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from engines.lines_per_address import LinesPerAddress
from service.http import protocol
from service.http.protocol import (
    FREE_CHUNKS,
    HEAD_PIECE_BYTES,
    LEAST_CHUNK_BYTES,
    BoundedProtocol,
)
from tests import loopback

Talk = Callable[..., Awaitable[bytes]]
HEAD = b"POST / HTTP/1.1\r\nHost: x\r\n"


class Narrow(BoundedProtocol):
    """The same for smaller heads; patient, since the machine that runs this may be busy."""

    max_head_bytes = 8192
    patience_s = 60.0


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Narrow, "patience_s", 0.3)


async def echo_size(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers the size of the body; a body of one byte, only after more than the patience."""
    size, more = 0, True
    if scope["path"] == "/refused":
        await send({"type": "http.response.start", "status": 401, "headers": []})
        await send({"type": "http.response.body", "body": b""})
        return
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)
    if scope["path"] == "/held":
        time.sleep(1.5)  # with the loop: longer than a connection is kept
    if size == 1:
        await asyncio.sleep(2 * Narrow.patience_s)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"%d bytes" % size})


@pytest.fixture
def port() -> Iterator[int]:
    """A server on the loop that serves users: uvloop's transports are no asyncio.Transport."""
    config = uvicorn.Config(
        echo_size, http=Narrow, loop="uvloop", log_config=None, lifespan="off", timeout_keep_alive=1
    )
    server = uvicorn.Server(config)
    with loopback.listening() as listener:
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        yield listener.getsockname()[1]
        server.should_exit = True
        thread.join(timeout=60)


@pytest.fixture
def talk(port: int) -> Talk:
    """Send pieces on one connection; everything it answers until it closes."""

    async def send(*pieces: bytes, pause_s: float = 0.1) -> bytes:
        reader, writer = await asyncio.open_connection(loopback.ADDRESS, port)
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(pause_s)
        try:
            return await asyncio.wait_for(reader.read(), 60)
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    return send


@pytest.mark.parametrize("patience_s", [60.0, 0.3])
async def test_what_came_while_the_loop_was_held_up_is_answered(
    port: int, monkeypatch: pytest.MonkeyPatch, patience_s: float
) -> None:
    """The times to wait for it are over then, too, and uvloop looks at these first."""
    whole = HEAD + b"Content-Length: 4\r\n\r\nbody"
    reader, writer = await asyncio.open_connection(loopback.ADDRESS, port)
    writer.write(whole)
    assert b"4 bytes" in await reader.readuntil(b"4 bytes")
    other_reader, other = await asyncio.open_connection(loopback.ADDRESS, port)
    monkeypatch.setattr(Narrow, "patience_s", patience_s)
    if patience_s < 1:  # its head is waited for
        writer.write(whole[:5])
    await asyncio.sleep(0.1)
    other.write(whole.replace(b"POST /", b"POST /held"))
    await asyncio.sleep(0.5)
    writer.write(whole[5:] if patience_s < 1 else whole)
    assert b"4 bytes" in await asyncio.wait_for(reader.readuntil(b"4 bytes"), 60)
    assert b"4 bytes" in await asyncio.wait_for(other_reader.readuntil(b"4 bytes"), 60)
    for each in (writer, other):
        each.close()
        await each.wait_closed()


def error_of(answer: bytes) -> tuple[bytes, Any]:
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.split(b" ")[1], json.loads(body)["error"]


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize(
    ("pieces", "part"),
    [
        ([], "headers"),
        ([b"\r\n"], "headers"),
        ([b"GET / HT"], "headers"),
        ([HEAD], "headers"),
        ([HEAD + b"Content-Length: 9\r\n\r\n", b"abc"], "body"),
    ],
)
async def test_a_request_that_does_not_come_whole_is_ended(
    talk: Talk, pieces: list[bytes], part: str
) -> None:
    status, error = error_of(await talk(*pieces))
    assert status == b"408"
    assert f"{part} did not arrive within 0.3 s" in error["message"]


async def test_an_endless_header_is_refused(talk: Talk) -> None:
    status, error = error_of(await talk(HEAD + b"X: ", *[b"a" * 3000] * 4, pause_s=0.02))
    assert status == b"431"
    assert "8192 bytes" in error["message"]


async def test_a_head_that_is_too_large_is_refused_in_one_piece_too(talk: Talk) -> None:
    status, error = error_of(await talk(HEAD + b"X: " + b"a" * 9000 + b"\r\n\r\n"))
    assert (status, error["code"]) == (b"431", "headers_too_large")
    status, error = error_of(await talk(b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: x\r\n\r\n"))
    assert (status, error["code"]) == (b"431", "headers_too_large")


@pytest.mark.parametrize(
    ("head", "says"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "0 Host headers"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nhost: b\r\n\r\n", "2 Host headers"),
        (b"GET / HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n", "2 Host headers"),
        (b"GET /\r\n\r\n", "HTTP/0.9"),
    ],
)
async def test_what_the_parser_lets_pass_is_refused(talk: Talk, head: bytes, says: str) -> None:
    status, error = error_of(await talk(head))
    assert (status, error["code"]) == (b"400", "invalid_http")
    assert says in error["message"]


async def test_heads_that_cannot_be_read_do_not_fill_the_log(
    talk: Talk, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "_lines", LinesPerAddress())
    heads = (b"GET\r\n\r\n", b"\x16\x03\x01\x00\xa5\x01", b"GET / HTTP/1.1\r\n\r\n")
    for number in range(60):
        assert b" 400 " in await talk(heads[number % len(heads)], pause_s=0.0)
    assert caplog.messages[0].startswith(
        f"A request of {loopback.ADDRESS} was refused: Invalid HTTP request"
    )
    assert 20 <= len(caplog.messages) < 40


UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nContent-Length: 3\r\n\r\n"


async def test_a_wish_for_http_2_is_ignored_and_the_body_is_read(talk: Talk) -> None:
    answers = await asyncio.gather(talk(HEAD + UPGRADE, b"abc"), talk(HEAD + UPGRADE + b"abc"))
    assert all(b"3 bytes" in answer for answer in answers)
    # Of a body that looks like that header nothing is changed, and its size is the same.
    body = b"\r\nUpgrade: h2c"
    head = HEAD + b"Connection: Upgrade\r\nContent-Length: %d\r\n\r\n" % len(body)
    assert b"%d bytes" % len(body) in await talk(head + body)


async def test_a_wish_for_http_2_is_ignored_wherever_it_is_cut(talk: Talk) -> None:
    """vllm#57203, uvicorn#2722: the header's name in two packets, or its line in the second."""
    whole = HEAD + UPGRADE
    first = whole.index(b"\r\nUpgrade:")
    cuts = [*range(first, first + 14), len(whole) - 3, len(whole) - 2, len(whole) - 1]
    each = [whole[index : index + 1] for index in range(len(whole))]
    answers = await asyncio.gather(
        *(talk(whole[:cut], whole[cut:], b"abc", pause_s=0.01) for cut in cuts),
        talk(*each, b"abc", pause_s=0.0),
    )
    for cut, answer in zip([*cuts, "each byte"], answers, strict=True):
        assert b"3 bytes" in answer, cut


async def test_http_1_0_needs_no_host(talk: Talk) -> None:
    assert b"0 bytes" in await talk(b"GET / HTTP/1.0\r\n\r\n")


async def test_what_is_no_http_is_answered_in_the_one_shape(talk: Talk) -> None:
    status, error = error_of(await talk(b"\x16\x03\x01 hello\r\n\r\n"))
    assert (status, error["code"]) == (b"400", "invalid_http")


async def test_a_body_that_keeps_coming_is_read_to_its_end(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Narrow, "patience_s", 1.0)
    pieces = [b"a" * 4096] * 16  # which takes twice the patience
    answer = await talk(
        HEAD + b"Connection: close\r\nContent-Length: 65536\r\n\r\n", *pieces, pause_s=0.13
    )
    assert b"65536 bytes" in answer


@pytest.mark.usefixtures("hasty")
async def test_a_slow_answer_is_not_cut_short_by_the_next_head(talk: Talk) -> None:
    answer = await talk(HEAD + b"Content-Length: 1\r\n\r\nx" + b"GET / HT")
    assert b"1 bytes" in answer


async def test_a_body_of_tiny_chunks_is_refused_after_a_few_thousand(talk: Talk) -> None:
    chunked = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    few = b"1\r\nx\r\n" * FREE_CHUNKS + b"0\r\n\r\n"
    assert b"%d bytes" % FREE_CHUNKS in await talk(chunked + few)
    status, error = error_of(await talk(chunked + b"1\r\nx\r\n" * (FREE_CHUNKS + 1)))
    assert (status, error["code"]) == (b"400", "chunks_too_small")
    usual = b"%x\r\n%s\r\n" % (LEAST_CHUNK_BYTES, b"x" * LEAST_CHUNK_BYTES)
    answer = await talk(chunked + usual * 2 * FREE_CHUNKS + b"0\r\n\r\n")
    assert b"%d bytes" % (2 * FREE_CHUNKS * LEAST_CHUNK_BYTES) in answer


async def test_what_comes_together_of_a_body_is_handed_on_together(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """uvicorn copies all that waits of a body for each piece it is handed."""
    handed: list[int] = []
    hand_on = HttpToolsProtocol.on_body

    def noting(self: HttpToolsProtocol, body: bytes) -> None:
        handed.append(len(body))
        hand_on(self, body)

    monkeypatch.setattr(HttpToolsProtocol, "on_body", noting)
    body = b"8\r\nabcdefgh\r\n" * 1000 + b"0\r\n\r\n"
    assert b"8000 bytes" in await talk(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + body)
    assert sum(handed) == 8000
    assert len(handed) < 100


async def test_few_pipelined_requests_are_parsed_at_once_and_all_are_answered(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    longest = 0
    begin = HttpToolsProtocol.on_headers_complete

    def noting(self: HttpToolsProtocol) -> None:
        nonlocal longest
        begin(self)
        longest = max(longest, len(self.pipeline))

    monkeypatch.setattr(HttpToolsProtocol, "on_headers_complete", noting)
    get = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    answer = await talk(get * 3000 + b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert answer.count(b"0 bytes") == 3001
    assert longest <= HEAD_PIECE_BYTES / len(get)


async def test_a_body_that_nobody_wants_is_not_read_without_end(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "MOST_UNWANTED_BYTES", 100_000)
    reader, writer = await asyncio.open_connection(loopback.ADDRESS, port)
    head = b"POST /refused HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    writer.write(head)
    assert b" 401 " in await reader.readline()
    async with asyncio.timeout(60):
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(b"4e20\r\n" + b"x" * 20_000 + b"\r\n")
                await writer.drain()
                await asyncio.sleep(0)
    writer.close()
