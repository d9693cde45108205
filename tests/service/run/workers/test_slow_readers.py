"""A client that does not read its stream stops the engine, not the server, and is cut off."""

from __future__ import annotations

import contextlib
import json
import re
import socket
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import psutil
import pytest

from tests import loopback

pytestmark = pytest.mark.slow

Fixture = Callable[..., Any]
BODY = {
    "model": "nano",
    "messages": [{"role": "user", "content": "Hi"}],
    "stream": True,
    "logprobs": True,
    "top_logprobs": 20,
}
ENGINE = {"step_s": 0.002, "tokens_per_step": 16, "max_model_len": 131_072, "max_num_seqs": 64}
MOST_GROWTH_BYTES = 64e6
WORDS = "word " * 12_000


@pytest.fixture
def script(harmony_ids: Callable[[str], Any]) -> list[int]:
    """The tokens of an answer with WORDS."""
    return list(harmony_ids(f"<|channel|>final<|message|>{WORDS}<|return|>"))


def metric(url: str, series: str) -> float:
    lines = httpx2.get(f"{url}/v1/metrics").text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(series))


@contextlib.contextmanager
def stalled(server: Any, num_readers: int, **changes: Any) -> Iterator[list[socket.socket]]:
    """Clients that have read how their stream begins."""
    data = json.dumps(BODY | changes).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}"
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(socket.socket(loopback.FAMILY)) for _ in range(num_readers)]
        for client in clients:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.settimeout(60)
            client.connect((loopback.ADDRESS, server.port))
            client.sendall(f"{head}\r\nContent-Type: application/json\r\n\r\n".encode() + data)
            assert client.recv(15) == b"HTTP/1.1 200 OK"
        yield clients


def test_the_engine_waits_for_a_slow_reader_who_gets_all_of_it(
    serve: Fixture, script: list[int]
) -> None:
    server = serve("--api-workers=1", script=script, **ENGINE).ready()
    url, read = server.url, b""
    with stalled(server, 1) as [client]:
        server.until(lambda: metric(url, "harmonium_answer_pauses_total") > 0)
        server.until(lambda: metric(url, "harmonium_engine_running_requests") == 0)
        while b"[DONE]" not in read[-100:]:
            part = client.recv(1 << 20)
            assert part, "the server closed the connection"
            read += part
    events = [json.loads(data) for data in re.findall(rb"data: (\{.*\})\n", read)]
    content = [choice["delta"].get("content") for event in events for choice in event["choices"]]
    assert "".join(filter(None, content)) == WORDS


def test_readers_that_stop_are_cut_with_a_line_and_their_memory_is_bounded(
    serve: Fixture, script: list[int]
) -> None:
    server = serve("--api-workers=1", script=script, **ENGINE).ready()
    [worker] = server.workers
    before = psutil.Process(worker.pid).memory_info().rss
    with stalled(server, 16):
        server.wait_for("bytes of its answer in 30 s; closing its connection")
        server.until(lambda: metric(server.url, "harmonium_engine_running_requests") == 0)
        assert metric(server.url, 'harmonium_slow_readers_total{reason="speed"}') > 0
        assert psutil.Process(worker.pid).memory_info().rss - before < MOST_GROWTH_BYTES
