"""A router beside a server knows what its engine caches, also after the engine was killed."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import msgspec
import zmq

from engines.kv_events.publisher import END
from tests import plain
from tests.e2e.conftest import READY_WITHIN_S, StartServer
from tests.engines.kv_events.llm_d import Picker


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def replayed(port: int) -> list[bytes]:
    """All batches of the engine that runs now, asked for as llm-d does when it connects."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger, dealer.rcvtimeo = 0, READY_WITHIN_S * 1000
        dealer.connect(f"tcp://127.0.0.1:{port}")
        dealer.send_multipart([b"", bytes(8)])
        batches: list[bytes] = []
        while True:
            _, topic, number, payload = dealer.recv_multipart()
            if number == END:
                return batches
            assert (topic, int.from_bytes(number, "big")) == (b"kv@pod@nano", len(batches))
            batches.append(payload)


def test_a_router_is_told_what_the_engine_caches(start_server: StartServer) -> None:
    port, replay = free_port(), free_port()
    program = str(Path(sys.executable).parent / "harmonium")
    server = start_server(
        [
            *(program, "serve", "--model-name=nano", "--enable-kv-cache-events"),
            f"--kv-events-endpoint=tcp://127.0.0.1:{port}",
            f"--kv-events-replay-endpoint=tcp://127.0.0.1:{replay}",
            "--kv-events-topic=kv@pod@nano",
        ]
    )
    prompt = [*range(1000, 1400)]
    block_size = int(server.metric("harmonium_engine_kv_block_tokens") or 0)
    for _ in range(2):
        body = {"model": "nano", "prompt": prompt, "max_tokens": 2}
        answer = plain.post(f"{server.url}/v1/completions", json=body, timeout=READY_WITHIN_S)
        assert answer.status_code == 200
        batches = replayed(replay)
        assert msgspec.msgpack.decode(batches[0])[1][0] == ["AllBlocksCleared"]
        picker = Picker(block_size)
        for batch in batches:
            picker.take(batch)
        assert picker.num_believed(prompt) == len(prompt) // block_size
        server.engine().kill()
        server.wait_for_ready(503)
        server.wait_for_ready()
