"""Several API workers are one server: one port, one engine, one store, one scrape, one end."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import tempfile
from collections.abc import Callable
from typing import Any

import httpx2
import psutil
import pytest

from engines.live_folder import LiveFolder
from tests import loopback, plain

Fixture = Callable[..., Any]

PATIENCE_S = 60
CHAT = "/v1/chat/completions"
BODY = {"model": "nano", "messages": [{"role": "user", "content": "Hi"}]}
STREAM = BODY | {"stream": True}
SUCCEEDED = 'request_success_total{model_name="nano"}'
RUNNING = "harmonium_engine_running_requests{"


def metric(client: httpx2.Client, series: str) -> float:
    lines = client.get("/v1/metrics").text.splitlines()
    [line] = [line for line in lines if series in line and line[0] != "#"]
    return float(line.rsplit(" ", 1)[1])


def test_what_one_worker_began_every_worker_knows(serve: Fixture) -> None:
    server = serve(step_s=0.02).ready()
    first, second = (server.client_of(worker) for worker in server.workers)
    for client in (first, second, second):
        assert client.post(CHAT, json=BODY | {"max_tokens": 9}).status_code == 200
    for client in (first, second):  # a request is counted after its last byte is sent
        server.until(lambda c=client: metric(c, SUCCEEDED) == 3)

    body = {"model": "nano", "input": "Hi", "max_output_tokens": 16}
    stored = first.post("/v1/responses", json=body).json()
    more = second.post("/v1/responses", json=body | {"previous_response_id": stored["id"]})
    assert more.json()["previous_response_id"] == stored["id"]

    run = first.post("/v1/responses", json=body | {"background": True, "max_output_tokens": 4000})
    path = f"/v1/responses/{run.json()['id']}"
    texts = []
    with second.stream("GET", path, params={"stream": True, "starting_after": 3}) as followed:
        events = (json.loads(line[6:]) for line in followed.iter_lines() if line[:6] == "data: ")
        for event in events:
            assert event["sequence_number"] > 3
            texts.append(event.get("delta", ""))
            if "word" in texts[-1]:
                break
    other = server.client_of(server.workers[1])
    assert other.post(f"{path}/cancel").json()["status"] == "cancelled"
    assert first.get(path).json()["status"] == "cancelled"
    server.until(lambda: metric(first, RUNNING) == 0)

    with contextlib.ExitStack() as opened:
        for _ in range(32):
            opened.enter_context(socket.create_connection((loopback.ADDRESS, server.port)))
        server.until(lambda: sum(server.num_connections()) >= 32)
        assert min(server.num_connections()) >= 10  # none has most of them

    server.engine.kill()
    for client in (first, other):
        server.until(lambda c=client: "SIGKILL" in c.get("/v1/health/ready").text)
    for client in (first, other):
        server.until(lambda c=client: c.get("/v1/health/ready").status_code == 200)
    assert metric(other, "engine_restarts_total") == 1
    children = server.children
    with other.stream("POST", CHAT, json=STREAM) as response:
        next(response.iter_lines())
        server.process.send_signal(signal.SIGINT)
        server.wait_for("Stopping")
        server.process.send_signal(signal.SIGINT)
        assert server.exit_code() == 130
    assert psutil.wait_procs(children, timeout=PATIENCE_S)[1] == []
    assert "Traceback" not in server.log


def test_a_killed_worker_ends_its_own_streams_only_and_is_replaced(serve: Fixture) -> None:
    server = serve(step_s=0.01).ready()
    victim, other = server.workers
    theirs, ours = server.client_of(victim), server.client_of(other)
    probe = server.client_of(other)
    with (
        theirs.stream("POST", CHAT, json=STREAM) as cut,
        ours.stream("POST", CHAT, json=STREAM | {"max_tokens": 150}) as whole,
    ):
        cut_lines, lines = cut.iter_lines(), whole.iter_lines()
        next(cut_lines)
        next(lines)
        assert metric(probe, RUNNING) == 2
        victim.kill()
        with pytest.raises(httpx2.HTTPError):
            list(cut_lines)
        server.wait_for("aborting its 1 requests")  # the other stream may be over by now
        server.until(lambda: metric(probe, RUNNING) <= 1)
        assert plain.get(f"{server.url}/v1/health/ready", timeout=PATIENCE_S).status_code == 200
        assert "SIGKILL" in server.wait_for("restarting it in")
        assert list(lines)[-2] == "data: [DONE]"
    server.until(lambda: len(server.workers) == 2)
    [successor] = [worker for worker in server.workers if worker.pid != other.pid]
    client = server.client_of(successor)
    server.until(lambda: client.get("/v1/health/ready").status_code == 200)
    children = server.children
    with ours.stream("POST", CHAT, json=STREAM | {"max_tokens": 200}) as running:
        lines = running.iter_lines()
        next(lines)
        server.process.terminate()  # the drain waits for the stream
        server.until(lambda: server.log.count("Stopping") == 2)
        assert probe.get("/v1/health/ready").status_code == 503
        rest = list(lines)
    assert rest[-2] == "data: [DONE]"
    assert '"finish_reason":"length"' in rest[-4]
    assert server.exit_code() == 0
    assert psutil.wait_procs(children, timeout=PATIENCE_S)[1] == []


def test_a_worker_that_succeeds_another_answers_once_it_can(serve: Fixture) -> None:
    server = serve().ready()
    server.workers[0].kill()
    server.wait_for("restarting it in")
    found = set()
    while "is ready again" not in server.log:
        with plain.Client(base_url=server.url, timeout=PATIENCE_S) as client:
            found.add(client.get("/v1/health/ready").status_code)
            found.add(client.post(CHAT, json=BODY | {"max_tokens": 1}).status_code)
    assert found == {200}


def test_nothing_survives_a_parent_that_is_killed(serve: Fixture) -> None:
    server = serve(step_s=0.1).ready()
    client = server.client_of(server.workers[0])
    children = server.children
    assert len(children) == 3
    with client.stream("POST", CHAT, json=STREAM) as response:
        next(response.iter_lines())
        server.process.kill()
        assert psutil.wait_procs(children, timeout=PATIENCE_S)[1] == []
    assert server.exit_code() == -signal.SIGKILL


@pytest.mark.slow
def test_what_a_server_leaves_that_is_killed_with_all_it_started_goes_at_the_next_start(
    serve: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve().ready()
    everybody = [*server.children, psutil.Process(server.process.pid)]
    for process in everybody:
        process.suspend()  # nobody sees another one die
    for process in everybody:
        process.kill()
    assert psutil.wait_procs(everybody[:-1], timeout=PATIENCE_S)[1] == []
    server.process.wait()
    assert len([*server.temp.iterdir()]) == 2  # the workers' and the engine's
    monkeypatch.setattr(tempfile, "tempdir", str(server.temp))
    following = LiveFolder()
    following.make()
    assert [*server.temp.iterdir()] == [following.path]
    following.remove()
    assert server.exit_code() == -signal.SIGKILL


@pytest.mark.slow
def test_a_worker_that_cannot_start_ends_the_server_with_the_reason(serve: Fixture) -> None:
    server = serve(start_s=600)
    server.until(lambda: len(server.workers) == 2)
    server.workers[0].kill()
    assert server.exit_code() == 1
    assert "was killed by SIGKILL" in server.log
    assert "Traceback" not in server.log


def test_workers_refuse_a_store_that_they_cannot_share(serve: Fixture) -> None:
    server = serve("--responses-path=/dev/null/responses")
    assert server.exit_code() == 1
    assert "NIM_RESPONSES_PATH is /dev/null/responses" in server.log
