"""The connections of a server: how they are set, and their end with it."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import closing

import pytest

from parts.dynamo.handover.idle_channels import IdleChannels
from parts.dynamo.handover.server import HandoverServer
from parts.dynamo.handover.spec import KvHandover
from tests.parts.dynamo.handover.pairs import SECRET, free_endpoint
from tests.parts.dynamo.handover.serving import fetch_over, gives_two_blocks


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    with closing(asyncio.new_event_loop()) as made:
        yield made


def test_neither_end_delays_small_messages(loop: asyncio.AbstractEventLoop) -> None:
    """With Nagle's algorithm a message behind another one can wait 40 ms for the acknowledgement of
    the first."""
    endpoint = free_endpoint()
    server = HandoverServer(KvHandover("prefill", SECRET, endpoint))
    server.bind()
    source = gives_two_blocks()
    source.is_cached = True  # so the loop has nothing to compute
    server.serve(source, loop)
    with closing(IdleChannels()) as idle:
        fetch_over(idle, endpoint)
        channel = idle.take(endpoint)
        assert channel is not None
        [accepted] = server._connections
        for end in (channel.connection, accepted):
            assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        channel.close()
        server.stop()


def test_a_connection_that_comes_as_the_server_stops_is_ended(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = free_endpoint()
    server = HandoverServer(KvHandover("prefill", SECRET, endpoint))
    server.bind()
    start, stopped = threading.Thread.start, Future[None]()

    def stop() -> None:
        try:
            server.stop()
            stopped.set_result(None)
        except Exception as error:
            stopped.set_exception(error)

    def start_late(thread: threading.Thread) -> None:
        """Stop the server just before the thread of a connection starts."""
        if thread.name == "kv-handover-peer":
            start(threading.Thread(target=stop))
            wait([stopped], timeout=0.2)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_late)
    server.serve(gives_two_blocks(), loop)
    address = ("127.0.0.1", int(endpoint.rpartition(":")[2]))
    with socket.create_connection(address, timeout=10.0) as connection:
        stopped.result(10.0)
        while connection.recv(1024):
            pass
