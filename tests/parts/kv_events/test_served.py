"""A router beside a server knows what its engine caches, also after the engine was killed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec
import pytest
import zmq

from parts.kv_events.publisher import END
from tests import loopback, plain
from tests.e2e.conftest import READY_WITHIN_S, Server, StartServer
from tests.parts.kv_events.llm_d import Picker

pytestmark = pytest.mark.skipif(
    "TEST_ENGINE_PYTHON" in os.environ, reason="only the native engine publishes KV events"
)


def replayed(port: int) -> list[bytes]:
    """All batches of the engine that runs now, asked for as llm-d does when it connects."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger, dealer.rcvtimeo = 0, READY_WITHIN_S * 1000
        dealer.ipv6 = not loopback.HAS_IPV4
        dealer.connect(f"tcp://{loopback.IN_URL}:{port}")
        dealer.send_multipart([b"", bytes(8)])
        batches: list[bytes] = []
        while True:
            _, topic, number, payload = dealer.recv_multipart()
            if number == END:
                return batches
            assert (topic, int.from_bytes(number, "big")) == (b"kv@pod@nano", len(batches))
            batches.append(payload)


def believed(replay: int, prompt: list[int], block_size: int) -> int:
    """How many blocks of the prompt a router believes the server to have."""
    batches = replayed(replay)
    assert msgspec.msgpack.decode(batches[0])[1][0] == ["AllBlocksCleared"]
    picker = Picker(block_size)
    for batch in batches:
        picker.take(batch)
    return picker.num_believed(prompt)


@pytest.fixture(scope="module")
def published(start_server: StartServer) -> tuple[Server, int]:
    """A server that publishes, and the port where what was missed is had."""
    port, replay = loopback.free_port(), loopback.free_port()
    program = str(Path(sys.executable).parent / "harmonium")
    command = [
        *(program, "serve", "--model-name=nano", "--enable-kv-cache-events"),
        f"--kv-events-endpoint=tcp://{loopback.IN_URL}:{port}",
        f"--kv-events-replay-endpoint=tcp://{loopback.IN_URL}:{replay}",
        "--kv-events-topic=kv@pod@nano",
    ]
    return start_server(command), replay


def ask(server: Server) -> tuple[list[int], int]:
    """Have a prompt computed; its ids, and how many of them a block has."""
    messages = [{"role": "user", "content": "Tell me more. " * 80}]
    body = {"model": "nano", "messages": messages, "max_tokens": 2}
    path = f"{server.url}/v1/chat/completions"
    prompt = plain.post(f"{path}/render", json=body, timeout=READY_WITHIN_S).json()["token_ids"]
    assert plain.post(path, json=body, timeout=READY_WITHIN_S).status_code == 200
    return prompt, int(server.metric("harmonium_engine_kv_block_tokens") or 0)


def test_a_router_is_told_what_the_engine_caches(published: tuple[Server, int]) -> None:
    server, replay = published
    prompt, block_size = ask(server)
    assert believed(replay, prompt, block_size) == len(prompt) // block_size


@pytest.mark.slow  # the engine's restart takes its time; the ports' reuse is ZeroMQ's
def test_an_engine_that_was_killed_begins_anew(published: tuple[Server, int]) -> None:
    server, replay = published
    ask(server)
    server.engine().kill()
    server.wait_for_ready(503)
    server.wait_for_ready()
    prompt, block_size = ask(server)
    assert believed(replay, prompt, block_size) == len(prompt) // block_size
