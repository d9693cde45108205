"""Whoever runs a background response dies: it is completed, and its events are one stream."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from engines.parts import folders
from tests.needs import needs
from tests.redis_server import start_redis

pytestmark = [pytest.mark.faults, needs("responses")]

PATH = "/v1/responses"
NUM_WORDS = 300
WORDS = " ".join(str(number) for number in range(1000, 1000 + NUM_WORDS))
PATIENCE_S = 120
STEP_S = 0.02  # so long does the answer take: some ten seconds


@pytest.fixture
def options(harmony_ids: Any) -> dict[str, Any]:
    thought = "<|channel|>analysis<|message|>Count on.<|end|><|start|>assistant"
    text = f"{thought}<|channel|>final<|message|>{WORDS}<|return|>"
    return {"script": harmony_ids(text), "step_s": STEP_S}


@pytest.fixture
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real Redis of our own, where there is a redis-server to start, and the part for it."""
    if "redis" not in folders():
        pytest.skip("the part redis was removed")
    path = tmp_path_factory.mktemp("redis") / "redis.sock"
    with start_redis(path) as process:
        yield f"unix://{path}"
        process.kill()


def workers(server: Any) -> list[psutil.Process]:
    return [child for child in server.children if "service.run.worker" in child.cmdline()]


def client_of(server: Any, worker: psutil.Process) -> httpx2.Client:
    """A client whose connection that worker has accepted."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        client = httpx2.Client(base_url=server.client.base_url, timeout=PATIENCE_S)
        with client.stream("GET", "/v1/health/live") as response:
            port = response.extensions["network_stream"].get_extra_info("client_addr")[1]
            response.read()
        if any(c.raddr and c.raddr.port == port for c in worker.net_connections("tcp")):
            return client
        client.close()
        assert time.monotonic() < deadline, "the worker takes no connection"


def begin(client: httpx2.Client) -> str:
    made = client.post(PATH, json={"model": "nano", "input": "Count", "background": True})
    assert made.status_code == 200, made.text
    return str(made.json()["id"])


def events_of(client: httpx2.Client, id: str, after: int = -1) -> Iterator[dict[str, Any]]:
    """The events of a response after a number, as they come."""
    params = {"stream": "true"} | ({"starting_after": str(after)} if after >= 0 else {})
    with client.stream("GET", f"{PATH}/{id}", params=params) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            if line.startswith("data: {"):
                yield json.loads(line.removeprefix("data: "))


def some_events(client: httpx2.Client, id: str, num_deltas: int) -> list[dict[str, Any]]:
    """The first events, up to so many pieces of text; the connection is left then, or was cut."""
    seen: list[dict[str, Any]] = []
    for event in events_of(client, id):
        seen.append(event)
        if sum(each["type"] == "response.output_text.delta" for each in seen) == num_deltas:
            break
    return seen


def check_whole(events: list[dict[str, Any]], stored: dict[str, Any], num_tokens: int) -> None:
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert stored["status"] == "completed"
    assert events[-1]["response"] == stored
    [reasoning, message] = stored["output"]
    assert reasoning["content"][0]["text"] == "Count on."
    assert message["content"][0]["text"] == WORDS
    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert "".join(deltas) == WORDS
    assert stored["usage"]["output_tokens"] == num_tokens


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_the_response_of_a_killed_worker_is_completed_by_another(
    serve: Any, options: dict[str, Any], kind: str, request: pytest.FixtureRequest
) -> None:
    shared = {"NIM_REDIS_URL": request.getfixturevalue("redis_url")} if kind == "redis" else {}
    server = serve(options=options, NIM_API_WORKERS="2", **shared)
    victim, other = workers(server)
    ours, theirs = client_of(server, victim), client_of(server, other)
    id = begin(ours)
    elsewhere = events_of(theirs, id)  # which follows it across the death
    followed = [next(elsewhere) for _ in range(12)]
    seen = some_events(ours, id, 20)
    victim.kill()
    victim.wait(PATIENCE_S)
    seen += events_of(theirs, id, seen[-1]["sequence_number"])
    stored = theirs.get(f"{PATH}/{id}").json()
    check_whole(seen, stored, len(options["script"]))
    assert [*followed, *elsewhere] == seen
    assert list(events_of(theirs, id)) == seen
    for client in (ours, theirs):
        client.close()
    assert server.interrupt() == 0


def test_the_response_of_a_killed_pod_is_completed_by_another(
    serve: Any, options: dict[str, Any], redis_url: str, tmp_path: Path
) -> None:
    pods = [
        serve(
            tmp_path / f"{name}.log",
            options,
            NIM_REDIS_URL=redis_url,
            NIM_CACHE_PATH=str(tmp_path / name),
        )
        for name in "ab"
    ]
    dying, other = pods
    id = begin(dying.client)
    seen = some_events(dying.client, id, 20)
    everybody = [*dying.children, psutil.Process(dying.process.pid)]
    for process in everybody:
        process.suspend()  # so that none sees another die
    for process in everybody:
        process.kill()
    dying.process.wait()
    seen += events_of(other.client, id, seen[-1]["sequence_number"])
    check_whole(seen, other.client.get(f"{PATH}/{id}").json(), len(options["script"]))
    assert other.interrupt() == 0


def test_a_pod_that_is_stopped_hands_its_responses_over_at_once(
    serve: Any, options: dict[str, Any], redis_url: str, tmp_path: Path
) -> None:
    pods = [
        serve(
            tmp_path / f"{name}.log",
            options,
            NIM_REDIS_URL=redis_url,
            NIM_CACHE_PATH=str(tmp_path / name),
        )
        for name in "ab"
    ]
    leaving, other = pods
    id = begin(leaving.client)
    seen = some_events(leaving.client, id, 20)
    leaving.process.send_signal(signal.SIGTERM)
    assert leaving.process.wait(PATIENCE_S) == 0
    seen += events_of(other.client, id, seen[-1]["sequence_number"])
    check_whole(seen, other.client.get(f"{PATH}/{id}").json(), len(options["script"]))
    assert "another worker has it now" not in (tmp_path / "a.log").read_text()
    assert other.interrupt() == 0


def test_a_worker_that_comes_back_after_its_lease_says_nothing_twice(
    serve: Any, options: dict[str, Any], redis_url: str, tmp_path: Path
) -> None:
    """As a machine that was paused: its lease is over, and another pod has its response."""
    pods = [
        serve(
            tmp_path / f"{name}.log",
            options,
            NIM_REDIS_URL=redis_url,
            NIM_CACHE_PATH=str(tmp_path / name),
        )
        for name in "ab"
    ]
    paused, other = pods
    id = begin(paused.client)
    seen = some_events(paused.client, id, 20)
    everybody = [psutil.Process(paused.process.pid), *paused.children]
    for process in everybody:
        process.suspend()
    rest = events_of(other.client, id, seen[-1]["sequence_number"])
    deadline = time.monotonic() + PATIENCE_S
    while psutil.pid_exists(paused.process.pid):  # until the other has gone on from there
        event = next(rest)
        seen.append(event)
        if len(seen) > 20 + NUM_WORDS // 2:
            break
        assert time.monotonic() < deadline
    for process in reversed(everybody):
        process.resume()
    seen += rest
    check_whole(seen, other.client.get(f"{PATH}/{id}").json(), len(options["script"]))
    assert list(events_of(other.client, id)) == seen
    for server in pods:
        assert server.interrupt() == 0
