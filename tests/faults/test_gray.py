"""What fails without an error: disks, logs, names, clocks and a Redis that answer late."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from tests import loopback
from tests.faults.conftest import PATIENCE_S
from tests.faults.gray import Gray, LateAnswers, slowed
from tests.needs import needs
from tests.redis_server import start_redis

pytestmark = pytest.mark.faults

LATE_S = 5.0
YEAR_S = 366 * 86400.0


@pytest.fixture
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LateAnswers]:
    socket = tmp_path_factory.mktemp("redis") / "redis.sock"
    process = start_redis(socket)
    between = LateAnswers(socket)
    yield between
    between.close()
    process.kill()
    process.wait()


def statuses(server: Any, number: int) -> set[int]:
    """Of chats one after another, each on a connection of its own."""
    body = {"model": "nano", "messages": [{"role": "user", "content": "Hi"}]}
    url = server.client.base_url.join("/v1/chat/completions")
    return {httpx2.post(url, json=body, timeout=PATIENCE_S).status_code for _ in range(number)}


def wait_until_stored(server: Any) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not server.post("/v1/responses", input="Hi").json()["store"]:
        assert time.monotonic() < deadline_s


def test_a_log_that_nobody_reads_holds_up_nobody(serve: Any, tmp_path: Path) -> None:
    """As a container's runtime does that stalls: the pipe is full after some lines."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 1 << 16)
    server = serve(log=pipe)
    fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 4096)
    assert statuses(server, 60) == {200}
    assert server.ready_status() == 200
    lines, deadline_s = b"", time.monotonic() + PATIENCE_S
    while lines.count(b"POST /v1/chat/completions -> 200") < 60:
        assert time.monotonic() < deadline_s
        try:
            lines += os.read(reader, 65536)
        except BlockingIOError:
            time.sleep(0.01)
    assert server.interrupt() == 0
    os.close(reader)


@pytest.mark.parametrize("name", ["log", "temporary", "cache"])
def test_a_disk_that_answers_late_holds_up_no_event_loop(
    name: str, serve: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    base = tmp_path_factory.mktemp("gray")  # a short name: there will be sockets
    folders = {each: base / each for each in ("log", "temporary", "cache")}
    for folder in folders.values():
        folder.mkdir()
    gray = Gray(base, folders[name])
    paths = {"NIM_CACHE_PATH": f"{folders['cache']}", "TMPDIR": f"{folders['temporary']}"}
    server = serve(log=folders["log"] / "log.txt", **paths, **gray.environment)
    assert statuses(server, 1) == {200}  # the first one looks for what an earlier process left
    gray.set_disk(LATE_S)
    assert statuses(server, 10) == {200}
    assert server.ready_status() == 200
    gray.set_disk(0)
    assert gray.num_held == 0
    assert server.interrupt() == 0


@needs("responses")
def test_a_disk_that_answers_late_under_the_store_costs_the_storing_only(
    serve: Any, tmp_path: Path
) -> None:
    gray = Gray(tmp_path, tmp_path / "store")
    store = str(tmp_path / "store" / "responses.sqlite")
    server = serve(NIM_RESPONSES_PATH=store, **gray.environment)
    wait_until_stored(server)
    gray.set_disk(10 * LATE_S)  # longer than anybody waits for it
    lost = server.post("/v1/responses", input="Hi")
    assert (lost.status_code, lost.json()["store"]) == (200, False)
    refused = server.post("/v1/responses", input="Hi", background=True)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "store_failed")
    assert statuses(server, 3) == {200}
    gray.set_disk(0)
    assert gray.num_held == 0
    wait_until_stored(server)
    assert server.interrupt() == 0


@needs("redis")
def test_a_slow_redis_is_asked_once_in_a_while(serve: Any, redis: LateAnswers) -> None:
    url = f"redis://{loopback.IN_URL}:{redis.port}"
    server = serve(NIM_REDIS_URL=url, NIM_RATE_LIMIT_REQUESTS="1000")
    assert statuses(server, 1) == {200}
    num_before, redis.delay_s = redis.num_questions, 0.8
    assert num_before
    assert statuses(server, 20) == {200}
    assert redis.num_questions - num_before < 20
    redis.delay_s = 0.0
    assert server.interrupt() == 0


@needs("redis", "responses")
def test_names_that_cannot_be_looked_up_hold_up_nobody(
    serve: Any, redis: LateAnswers, tmp_path: Path
) -> None:
    gray = Gray(tmp_path, tmp_path / "none")
    gray.set_names(20.0)
    url = f"redis://localhost:{redis.port}"
    server = serve(NIM_REDIS_URL=url, NIM_RATE_LIMIT_REQUESTS="1000", **gray.environment)
    assert statuses(server, 10) == {200}
    assert server.post("/v1/responses", input="Hi").json()["store"] is False
    assert server.ready_status() == 200
    gray.set_names(0.0)
    wait_until_stored(server)
    assert server.interrupt() == 0


@needs("responses")
@pytest.mark.parametrize("jump_s", [YEAR_S, -YEAR_S])
def test_a_clock_that_jumps_costs_no_answer(jump_s: float, serve: Any, tmp_path: Path) -> None:
    gray = Gray(tmp_path, tmp_path / "none")
    limits = {"NIM_RATE_LIMIT_REQUESTS": "1000", "NIM_REQUEST_TIMEOUT_S": "120"}
    server = serve(options={"step_s": 0.1}, **limits, **gray.environment)
    kept = server.post("/v1/responses", input="Hi").json()
    begun = server.post("/v1/responses", input="Hi", background=True).json()
    gray.set_clock(jump_s)
    assert statuses(server, 3) == {200}
    finished, deadline_s = begun, time.monotonic() + PATIENCE_S
    while finished["status"] in ("queued", "in_progress"):
        assert time.monotonic() < deadline_s
        finished = server.client.get(f"/v1/responses/{begun['id']}").json()
    assert finished["status"] == "completed"
    gray.set_clock(0)
    assert statuses(server, 3) == {200}
    assert server.client.get(f"/v1/responses/{kept['id']}").json() == kept
    assert server.ready_status() == 200
    assert server.interrupt() == 0


def two_workers(serve: Any, log: Path) -> Any:
    """A server both of whose workers are ready: one answers as soon as it is."""
    server, deadline_s = serve(log=log, NIM_API_WORKERS="2"), time.monotonic() + PATIENCE_S
    while "Ready after" not in log.read_text():
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
    return server


@contextmanager
def stopped(worker: psutil.Process) -> Iterator[None]:
    worker.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(psutil.NoSuchProcess):  # it is replaced after 20 s
            worker.send_signal(signal.SIGCONT)


def test_a_stopped_worker_gets_no_new_connection(serve: Any, tmp_path: Path) -> None:
    server = two_workers(serve, tmp_path / "log.txt")
    with stopped(server.api):
        assert statuses(server, 20) == {200}
    assert server.interrupt() == 0


def two_engines(serve: Any, harmony_ids: Any) -> Any:
    text = f"<|channel|>final<|message|>{100 * 'word '}<|return|>"
    options = {"step_s": 0.02, "script": harmony_ids(text)}
    return serve(options=options, NIM_REPLICAS="2", NIM_API_WORKERS="1")


def ask_until(server: Any, told: str, log: Path) -> None:
    """Twelve at once: up to four more go where a prompt's beginning is cached."""
    deadline_s = time.monotonic() + PATIENCE_S
    with ThreadPoolExecutor(12) as pool:
        while told not in log.read_text():
            assert time.monotonic() < deadline_s
            asked = pool.map(lambda _: server.chat().status_code, range(12))
            assert set(asked) == {200}


def test_a_slow_engine_is_avoided_until_it_is_fast_again(
    serve: Any, harmony_ids: Any, tmp_path: Path
) -> None:
    server, log = two_engines(serve, harmony_ids), tmp_path / "log.txt"
    with slowed(server.engine, 0.05):
        ask_until(server, "requests avoid it", log)
        page = server.client.get("/metrics").text
        assert len(re.findall(r"harmonium_engine_replica_slow\{.*\} 1\.0", page)) == 1
    ask_until(server, "is no longer avoided", log)
    assert server.interrupt() == 0
