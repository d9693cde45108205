"""Connections that stay open between prompts, and what becomes of them meanwhile."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from parts.dynamo.handover.ask import PrefillAsk
from parts.dynamo.handover.channel import HandoverError, MessageKind, as_server
from parts.dynamo.handover.fetch import Fetch
from parts.dynamo.handover.idle_channels import IdleChannels
from tests.parts.dynamo.handover.pairs import BLOCK, SECRET, ask, handover, prompt, running
from tests.parts.dynamo.handover.serving import (
    REQUEST,
    TWO_BLOCKS,
    Kept,
    Serve,
    Waiting,
    fetch_over,
    gives_two_blocks,
)

CACHED = (400 - 1) // BLOCK * BLOCK


@pytest.fixture
def idle() -> Iterator[IdleChannels]:
    with closing(IdleChannels()) as channels:
        yield channels


def port_of_idle(idle: IdleChannels, endpoint: str) -> int:
    """Our end of the connection that the next prompt would use."""
    channel = idle.take(endpoint)
    assert channel is not None
    idle.put(endpoint, channel)
    port: int = channel.connection.getsockname()[1]
    return port


def test_the_next_prompt_has_the_same_connection(serve: Serve, idle: IdleChannels) -> None:
    endpoint = serve(gives_two_blocks())
    ports = set()
    for _ in range(5):
        assert fetch_over(idle, endpoint) == TWO_BLOCKS
        ports.add(port_of_idle(idle, endpoint))
    assert len(ports) == 1


def test_of_many_at_once_two_are_kept(serve: Serve, idle: IdleChannels) -> None:
    endpoint = serve(gives_two_blocks())
    together = threading.Barrier(6, timeout=60)

    def one() -> None:
        together.wait()
        for _ in range(3):
            assert fetch_over(idle, endpoint) == TWO_BLOCKS

    with ThreadPoolExecutor(6) as threads:
        for each in [threads.submit(one) for _ in range(6)]:
            each.result()
    kept = []
    while (channel := idle.take(endpoint)) is not None:
        kept.append(channel)
    for channel in kept:
        channel.close()
    assert 1 <= len(kept) <= 2


def test_an_old_one_is_not_used(
    serve: Serve, idle: IdleChannels, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = serve(gives_two_blocks())
    fetch_over(idle, endpoint)
    monkeypatch.setattr("parts.dynamo.handover.idle_channels.IDLE_S", 0.0)
    assert idle.take(endpoint) is None


def test_one_that_the_server_has_closed_is_not_used(
    serve: Serve, idle: IdleChannels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parts.dynamo.handover.server.IDLE_S", 0.005)
    endpoint = serve(gives_two_blocks())
    fetch_over(idle, endpoint)
    until_s = time.monotonic() + 10.0
    while (channel := idle.take(endpoint)) is not None:
        idle.put(endpoint, channel)
        assert time.monotonic() < until_s
        time.sleep(0.001)
    assert fetch_over(idle, endpoint) == TWO_BLOCKS


def test_one_that_is_closed_as_we_ask_is_replaced(idle: IdleChannels) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)
        endpoint = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        asked = []

        def serve() -> None:
            for num_questions in (2, 1):
                connection, _ = listener.accept()
                with connection:
                    channel = as_server(connection, SECRET)
                    for number in range(num_questions):
                        asked.append(channel.receive(1000, within_s=5.0).kind)
                        if number == 0:
                            channel.send(MessageKind.END, within_s=5.0)

        with ThreadPoolExecutor(1) as threads:
            serving = threads.submit(serve)
            fetch_over(idle, endpoint)
            fetch_over(idle, endpoint)
            serving.result()
    assert asked == [MessageKind.ASK] * 3


def test_one_that_is_lost_in_an_answer_is_a_failure(idle: IdleChannels) -> None:
    """Blocks may have been taken: the peer is not asked for them again."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)
        endpoint = f"tcp://127.0.0.1:{listener.getsockname()[1]}"

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                channel = as_server(connection, SECRET)
                channel.receive(1000, within_s=5.0)
                channel.send(MessageKind.END, within_s=5.0)
                channel.receive(1000, within_s=5.0)
                channel.send(MessageKind.WAIT, within_s=5.0)

        with ThreadPoolExecutor(1) as threads:
            serving = threads.submit(serve)
            fetch_over(idle, endpoint)
            with pytest.raises(HandoverError, match="closed the connection"):
                fetch_over(idle, endpoint)
            serving.result()
    assert idle.take(endpoint) is None


def test_a_late_cancellation_leaves_a_kept_connection_alone(
    serve: Serve, idle: IdleChannels
) -> None:
    endpoint = serve(gives_two_blocks())
    one = Fetch(SECRET, 5.0, idle)
    one.run(endpoint, PrefillAsk(REQUEST, Waiting.fingerprint), Kept(4, []))
    port = port_of_idle(idle, endpoint)
    one.cancel()
    assert port_of_idle(idle, endpoint) == port
    assert fetch_over(idle, endpoint) == TWO_BLOCKS


def test_an_idle_connection_makes_room_in_a_full_server(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parts.dynamo.handover.server._MOST_PEERS", 2)
    endpoint = serve(gives_two_blocks())
    with closing(IdleChannels()) as a, closing(IdleChannels()) as b, closing(IdleChannels()) as c:
        for each in (a, b, c, a, b, c):
            assert fetch_over(each, endpoint) == TWO_BLOCKS


def test_a_server_full_of_prompts_refuses_and_ends_none(
    serve: Serve, idle: IdleChannels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parts.dynamo.handover.server._MOST_PEERS", 1)
    source = Waiting()
    endpoint = serve(source)
    one = Fetch(SECRET, 60.0, idle)
    with ThreadPoolExecutor(1) as threads:
        asking = PrefillAsk(REQUEST, Waiting.fingerprint)
        running = threads.submit(one.run, endpoint, asking, Kept(4, []))
        assert source.is_asked.wait(5.0), running.result(0.0)
        with pytest.raises(HandoverError):
            fetch_over(idle, endpoint)
        assert not running.done()
        one.cancel()
        with pytest.raises(HandoverError):
            running.result(5.0)


async def test_a_peer_that_starts_again_is_used_at_once(folder: Path, endpoint: str) -> None:
    async with running(folder) as alone, running(folder, handover("decode")) as taking:
        for number in range(3):
            async with running(folder, handover("prefill", endpoint)):
                for each in (prompt(2 * number), prompt(2 * number + 1)):
                    found = await ask(taking, each, prefill_at=endpoint)
                    assert found == ((await ask(alone, each)).token_ids, CACHED)
        stats = await taking.stats()
        assert (stats.extras["handovers"], stats.extras["failed_handovers"]) == (6, 0)
