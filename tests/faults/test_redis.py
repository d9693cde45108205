"""Redis dies, or stops answering, in mid-run: inference goes on, nothing hangs."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.needs import needs
from tests.redis_server import start_redis as start_server

pytestmark = [pytest.mark.faults, needs("redis", "responses")]

BOUND_S = 10.0  # no request may wait longer for a Redis that is away

StartRedis = Callable[[], subprocess.Popen[bytes]]


@pytest.fixture
def redis_socket(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("redis") / "redis.sock"


@pytest.fixture
def start_redis(redis_socket: Path) -> Iterator[StartRedis]:
    """A real Redis of our own, where there is a redis-server to start."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        started.append(start_server(redis_socket))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def bounded(call: Callable[[], Any]) -> Any:
    begun_s = time.monotonic()
    answer = call()
    assert time.monotonic() - begun_s < BOUND_S
    return answer


def check_inference_goes_on(server: Any) -> None:
    assert bounded(server.chat).status_code == 200
    unkept = bounded(lambda: server.post("/v1/responses", input="Hi", store=False))
    assert unkept.status_code == 200
    lost = bounded(lambda: server.post("/v1/responses", input="Hi"))
    assert lost.status_code == 200
    assert lost.json()["store"] is False  # whole, and honest about what became of it
    begun = bounded(lambda: server.post("/v1/responses", input="Hi", background=True))
    assert (begun.status_code, begun.json()["error"]["code"]) == (503, "store_failed")
    assert server.ready_status() == 200


def test_inference_goes_on_without_redis(
    serve: Any, start_redis: StartRedis, redis_socket: Path
) -> None:
    redis = start_redis()
    server = serve(NIM_REDIS_URL=f"unix://{redis_socket}")
    assert server.post("/v1/responses", input="Hi").json()["store"] is True
    redis.kill()
    redis.wait()
    check_inference_goes_on(server)
    start_redis()
    deadline_s = time.monotonic() + BOUND_S  # it may not listen yet
    while not server.post("/v1/responses", input="Hi").json()["store"]:
        assert time.monotonic() < deadline_s
    assert server.interrupt() == 0


def test_a_redis_that_hangs_stalls_nobody(
    serve: Any, start_redis: StartRedis, redis_socket: Path
) -> None:
    redis = start_redis()
    server = serve(NIM_REDIS_URL=f"unix://{redis_socket}", NIM_RATE_LIMIT_REQUESTS="1000")
    kept = server.post("/v1/responses", input="Hi").json()
    redis.send_signal(signal.SIGSTOP)
    assert bounded(server.chat).status_code == 200
    assert bounded(lambda: server.post("/v1/responses", input="Hi")).json()["store"] is False
    assert server.ready_status() == 200
    asked = bounded(lambda: server.client.get(f"/v1/responses/{kept['id']}"))
    assert (asked.status_code, asked.json()["error"]["code"]) == (503, "store_failed")
    redis.send_signal(signal.SIGCONT)
    assert server.client.get(f"/v1/responses/{kept['id']}").json() == kept
    assert server.interrupt() == 0
