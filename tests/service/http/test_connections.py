"""Clients that take connections and memory: a reader that stops, a trickling body, too many."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import psutil
import pytest
import uvicorn

from service.http import connections
from service.http.connections import NUM_SPARE
from service.http.protocol import BoundedProtocol, bounded_protocol
from service.run.listener import listen
from service.run.server import ApiServer, create_app
from service.runtime import Runtime
from tests import loopback, plain

PATH = "/v1/chat/completions"
ENDLESS = "<|channel|>final<|message|>" + "word " * 50
ANSWER = ENDLESS + "<|return|>"
MAX_CONNECTIONS = 30

Serve = Callable[[Runtime], Any]


class Narrow(BoundedProtocol):
    """The same with less room; nobody goes by himself, however busy the machine is."""

    max_connections = MAX_CONNECTIONS
    patience_s = 60.0
    reader_patience_s = 60.0


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patience that runs out in a test's time."""
    monkeypatch.setattr(Narrow, "patience_s", 0.5)
    monkeypatch.setattr(Narrow, "reader_patience_s", 0.5)


@pytest.fixture
async def serve(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Serve]:
    """Serve a runtime on a socket as users get it; gives the port."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(runtime: Runtime) -> int:
            await runtime.engine.start()
            listener = stack.enter_context(listen(loopback.ADDRESS, 0))
            # Else the kernel buffers megabytes on the loopback, and a reader's progress shows late.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)
            app = create_app(runtime)
            monkeypatch.setattr(Narrow, "paths", app.paths)
            config = uvicorn.Config(app, http=Narrow, log_config=None, lifespan="off", ws="none")
            server = uvicorn.Server(config)
            task = asyncio.create_task(server.serve(sockets=[listener]))

            async def stop() -> None:
                server.should_exit = True
                await task
                await runtime.engine.stop()

            stack.push_async_callback(stop)
            port: int = listener.getsockname()[1]
            return port

        yield start


def request(body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


async def stall(port: int, body: dict[str, Any]) -> socket.socket:
    """Ask for a stream, read how it begins, and then nothing more."""
    loop = asyncio.get_running_loop()
    client = socket.socket(loopback.FAMILY)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    await loop.sock_connect(client, (loopback.ADDRESS, port))
    await loop.sock_sendall(client, request(body))
    assert await loop.sock_recv(client, 15) == b"HTTP/1.1 200 OK"
    return client


async def until(is_true: Callable[[], bool], timeout_s: float = 60) -> None:
    async with asyncio.timeout(timeout_s):
        while not is_true():
            await asyncio.sleep(0.01)


@pytest.mark.usefixtures("hasty")
async def test_readers_that_stop_hold_up_nobody_grow_nothing_and_are_cut_off(
    make_runtime: Any, chat_body: Any, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = make_runtime(ENDLESS, step_s=0.002)
    served = bounded_protocol(99, None, 0.5, partial(runtime.metrics.count_slow_reader, "speed"))
    monkeypatch.setattr(Narrow, "on_slow_reader", served.on_slow_reader)
    port = await serve(runtime)
    process = psutil.Process(os.getpid())
    endless = chat_body(stream=True, max_tokens=120_000, logprobs=True, top_logprobs=20)
    async with plain.AsyncClient(base_url=f"http://{loopback.IN_URL}:{port}", timeout=60) as client:
        await client.post(PATH, json=chat_body(max_tokens=50))
        before = process.memory_info().rss
        stalled = [await stall(port, endless) for _ in range(5)]
        brief = chat_body(stream=True, max_tokens=200)
        answer = await asyncio.wait_for(client.post(PATH, json=brief), 60)
        assert answer.text.endswith("data: [DONE]\n\n")
        await until(lambda: runtime.lifecycle.num_running == 0)
        assert process.memory_info().rss - before < 40e6
    async with asyncio.timeout(60):
        while (await runtime.engine.stats()).num_running:
            await asyncio.sleep(0.01)
    counted = (await runtime.metrics.render(runtime.engine)).decode()
    assert 'harmonium_slow_readers_total{reason="speed"} 5.0' in counted
    for each in stalled:
        each.close()


async def test_a_reader_that_is_slow_but_reads_gets_all(
    make_runtime: Any, chat_body: Any, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Narrow, "reader_patience_s", 1.0)
    port = await serve(make_runtime(ENDLESS))
    loop = asyncio.get_running_loop()
    client = await stall(port, chat_body(stream=True, max_tokens=2500))
    received, started_at = bytearray(), loop.time()
    while not received.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
        part = await asyncio.wait_for(loop.sock_recv(client, 2048), 60)
        assert part
        received += part
        await asyncio.sleep(0.004)
    assert loop.time() - started_at > Narrow.reader_patience_s, "too fast to show it"
    client.close()


@pytest.mark.usefixtures("hasty")
async def test_an_answer_that_nobody_fetches_is_dropped_with_its_connection(
    make_runtime: Any, chat_body: Any, serve: Serve
) -> None:
    runtime = make_runtime(ANSWER)
    port = await serve(runtime)
    client = await stall(port, chat_body(stream=True, n=128))
    await until(lambda: runtime.lifecycle.num_running == 0)
    connections = psutil.Process(os.getpid()).net_connections("tcp")
    assert connections
    await until(lambda: _is_closed_by_peer(client))
    client.close()


def _is_closed_by_peer(client: socket.socket) -> bool:
    try:
        while client.recv(65536):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        pass
    return True


@pytest.mark.usefixtures("hasty")
async def test_a_body_that_trickles_in_is_ended_although_it_never_stops(
    make_runtime: Any, chat_body: Any, serve: Serve
) -> None:
    port = await serve(make_runtime(ANSWER))
    reader, writer = await asyncio.open_connection(loopback.ADDRESS, port)
    head, _, body = request(chat_body(user="x" * 4000)).partition(b"\r\n\r\n")
    writer.write(head + b"\r\n\r\n")
    sent = 0
    answer = asyncio.create_task(reader.read())
    while not answer.done() and sent < len(body):
        writer.write(body[sent : sent + 2])
        sent += 2
        await asyncio.sleep(0.02)
    text = await asyncio.wait_for(answer, 60)
    writer.close()
    assert text.startswith(b"HTTP/1.1 408 ")
    assert b"less than 500 bytes per second" in text
    assert sent < 200


async def test_one_connection_too_many_is_told_and_probes_are_answered(
    make_runtime: Any, chat_body: Any, serve: Serve
) -> None:
    port = await serve(make_runtime(ANSWER))
    idle = [await asyncio.open_connection(loopback.ADDRESS, port) for _ in range(MAX_CONNECTIONS)]
    async with plain.AsyncClient(base_url=f"http://{loopback.IN_URL}:{port}", timeout=60) as client:
        refused = await client.post(PATH, json=chat_body())
        assert refused.json()["error"]["code"] == "too_many_connections"
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert (await client.get("/v1/health/ready")).status_code == 200
        for _, writer in idle:
            writer.close()
            await writer.wait_closed()
        assert (await client.post(PATH, json=chat_body())).status_code == 200


Flood = list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]


@pytest.fixture
async def flood() -> AsyncIterator[Flood]:
    """Connections that a test opens; they are closed however it ends."""
    opened: Flood = []
    yield opened
    for _, writer in opened:
        writer.close()
    for _, writer in opened:
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def test_probes_are_answered_in_a_flood_of_idle_connections(
    make_runtime: Any, serve: Serve, flood: Flood
) -> None:
    """Ten times as many as may be open, none of which needs credentials or sends anything."""
    port = await serve(make_runtime(ANSWER))
    async with plain.AsyncClient(base_url=f"http://{loopback.IN_URL}:{port}", timeout=60) as kept:
        assert (await kept.get("/v1/health/live")).status_code == 200
        for _ in range(20):
            opened = (
                asyncio.open_connection(loopback.ADDRESS, port) for _ in range(MAX_CONNECTIONS // 2)
            )
            flood += await asyncio.gather(*opened)
            for path in ("/v1/health/live", "/v1/health/ready", "/v1/version"):
                async with plain.AsyncClient(base_url=kept.base_url, timeout=60) as probe:
                    assert (await probe.get(path)).status_code == 200
    ended = sum(reader.at_eof() or reader.exception() is not None for reader, _ in flood)
    assert len(flood) - ended <= MAX_CONNECTIONS + NUM_SPARE


async def test_connections_that_rest_after_an_answer_make_room_for_probes(
    make_runtime: Any, serve: Serve, flood: Flood
) -> None:
    """A flood may send a request that needs no credentials on each of them."""
    port = await serve(make_runtime(ANSWER))
    probe = b"GET /v1/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
    for _ in range(MAX_CONNECTIONS + NUM_SPARE + 20):
        reader, writer = await asyncio.open_connection(loopback.ADDRESS, port)
        flood.append((reader, writer))
        writer.write(probe)
        assert await asyncio.wait_for(reader.read(15), 60) == b"HTTP/1.1 200 OK"


async def test_who_is_silent_makes_room_for_who_asks(
    make_runtime: Any,
    chat_body: Any,
    serve: Serve,
    flood: Flood,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "GRACE_S", 0.1)
    port = await serve(make_runtime(ANSWER))
    flood += [await asyncio.open_connection(loopback.ADDRESS, port) for _ in range(MAX_CONNECTIONS)]
    idle = [reader for reader, _ in flood]
    await asyncio.sleep(0.2)  # the grace
    async with plain.AsyncClient(base_url=f"http://{loopback.IN_URL}:{port}", timeout=60) as client:
        assert (await client.post(PATH, json=chat_body())).status_code == 200
    await until(lambda: idle[0].at_eof() or idle[0].exception() is not None)
    assert not idle[1].at_eof(), "one was enough"


async def test_who_rests_after_an_answer_makes_room_for_who_asks(
    make_runtime: Any,
    chat_body: Any,
    serve: Serve,
    flood: Flood,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "REST_S", 0.1)
    port = await serve(make_runtime(ANSWER))
    for _ in range(MAX_CONNECTIONS):
        reader, writer = await asyncio.open_connection(loopback.ADDRESS, port)
        flood.append((reader, writer))
        writer.write(b"GET /v1/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        assert await asyncio.wait_for(reader.read(15), 60) == b"HTTP/1.1 200 OK"
    await asyncio.sleep(0.2)  # the grace
    async with plain.AsyncClient(base_url=f"http://{loopback.IN_URL}:{port}", timeout=60) as client:
        assert (await client.post(PATH, json=chat_body())).status_code == 200


@pytest.mark.slow
async def test_a_connection_is_kept_for_longer_than_clients_keep_it(
    make_runtime: Any,
) -> None:
    """httpx keeps one for 5 s: closed at that very moment, a request on it would fail."""
    with listen(loopback.ADDRESS, 0) as listener:
        async with ApiServer(make_runtime(ANSWER)).listening(listener):
            reader, writer = await asyncio.open_connection(*listener.getsockname()[:2])
            for pause_s in (0.0, 6.0):
                await asyncio.sleep(pause_s)
                writer.write(b"GET /v1/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
                head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)).lower()
                assert head.startswith(b"http/1.1 200 ok")
                length = int(head.split(b"content-length: ")[1].split(b"\r")[0])
                await reader.readexactly(length)
            writer.close()


async def test_nobody_who_is_being_answered_makes_room(
    make_runtime: Any, chat_body: Any, serve: Serve, flood: Flood
) -> None:
    port = await serve(make_runtime(ENDLESS, step_s=0.01))
    body = request(chat_body(stream=True, max_tokens=100_000))
    reader, writer = await asyncio.open_connection(loopback.ADDRESS, port)
    flood.append((reader, writer))
    writer.write(body)
    await reader.readuntil(b"data: ")
    num_others = 3 * MAX_CONNECTIONS + NUM_SPARE
    flood += [await asyncio.open_connection(loopback.ADDRESS, port) for _ in range(num_others)]
    for _ in range(10):
        await asyncio.wait_for(reader.readuntil(b"data: "), 60)


async def test_an_address_has_no_more_connections_than_it_may(
    serve: Serve, make_runtime: Callable[..., Runtime], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Narrow, "max_connections_per_address", 2)
    port = await serve(make_runtime(ANSWER))
    opened = [await asyncio.open_connection(loopback.ADDRESS, port) for _ in range(3)]
    head = await opened[2][0].readuntil(b"\r\n\r\n")
    assert b" 429 " in head.split(b"\r\n")[0]
    error = json.loads(await opened[2][0].read())["error"]
    assert error["code"] == "too_many_connections"
    for reader, writer in opened[:2]:  # those go on
        writer.write(b"GET /v1/health/live HTTP/1.1\r\nHost: a\r\n\r\n")
        assert b" 200 " in await reader.readline()
    for _, writer in opened:
        writer.close()
        await writer.wait_closed()
    await until(lambda: not Narrow.num_connections_of)
    async with plain.AsyncClient(base_url=f"http://{loopback.IN_URL}:{port}", timeout=60) as client:
        assert (await client.get("/v1/health/live")).status_code == 200


async def test_no_cache_keeps_what_the_protocol_refuses(make_runtime: Any, serve: Serve) -> None:
    port = await serve(make_runtime(ANSWER))
    reader, writer = await asyncio.open_connection(loopback.ADDRESS, port)
    writer.write(b"GET\r\n\r\n")
    answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"\r\ncache-control: no-store\r\n" in answer
