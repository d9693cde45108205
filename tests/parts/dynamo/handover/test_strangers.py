"""Whoever does not know the secret costs nobody a handover, and the log few lines."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress

import pytest

from parts.dynamo.handover.idle_channels import IdleChannels
from tests.parts.dynamo.handover.serving import (
    TWO_BLOCKS,
    Serve,
    fetch,
    fetch_over,
    gives_two_blocks,
)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def connected(stack: ExitStack, endpoint: str) -> socket.socket:
    port = int(endpoint.rpartition(":")[2])
    return stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60.0))


def test_80_silent_strangers_cost_no_handover_and_close_no_idle_connection(
    serve: Serve, stack: ExitStack
) -> None:
    endpoint = serve(gives_two_blocks())
    with closing(IdleChannels()) as idle:
        assert fetch_over(idle, endpoint) == TWO_BLOCKS
        strangers = [connected(stack, endpoint) for _ in range(80)]
        for each in strangers[-64:]:
            assert each.recv(1), "they have places: it is the server that speaks first"
        for _ in range(12):
            assert fetch(endpoint) == TWO_BLOCKS
        kept = idle.take(endpoint)
        assert kept is not None, "the connection of a peer was closed"
        idle.put(endpoint, kept)
        assert fetch_over(idle, endpoint) == TWO_BLOCKS
        assert not kept.has_news(), "it was closed while it was asked"


def test_strangers_fill_no_log(
    serve: Serve, stack: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint = serve(gives_two_blocks())
    for _ in range(200):
        stranger = connected(stack, endpoint)
        stranger.sendall(bytes(64))
        with suppress(ConnectionResetError):
            while stranger.recv(1024):
                pass
    told = [line for line in caplog.messages if "another secret" in line]
    assert 20 <= len(told) < 40
    assert len(caplog.messages) == len(told)
