"""A process is killed in the middle of a batch: every custom_id has one line of results."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from engines.parts import folders
from tests.needs import needs
from tests.redis_server import start_redis

pytestmark = [pytest.mark.faults, needs("batches")]

NUM_LINES = 400
TEXT = "<|channel|>final<|message|>one two three<|return|>"
STEP_S = 0.03
PATIENCE_S = 180


@pytest.fixture
def options(harmony_ids: Any) -> dict[str, Any]:
    return {"script": harmony_ids(TEXT), "step_s": STEP_S, "max_num_seqs": 16}


@pytest.fixture
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real Redis of our own, where there is a redis-server to start, and the part for it."""
    if "redis" not in folders():
        pytest.skip("the part redis was removed")
    path = tmp_path_factory.mktemp("redis") / "redis.sock"
    with start_redis(path) as process:
        yield f"unix://{path}"
        process.kill()


def begin(server: Any) -> str:
    messages = [{"role": "user", "content": "Hi"}]
    body = {"model": "nano", "messages": messages, "max_tokens": 16}
    line = {"method": "POST", "url": "/v1/chat/completions", "body": body}
    text = "".join(json.dumps({"custom_id": f"n{n}"} | line) + "\n" for n in range(NUM_LINES))
    files = {"file": ("in.jsonl", text.encode())}
    made = server.client.post("/v1/files", files=files, data={"purpose": "batch"})
    assert made.status_code == 200, made.text
    batch = server.client.post(
        "/v1/batches",
        json={
            "input_file_id": made.json()["id"],
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
        },
    )
    assert batch.status_code == 200, batch.text
    return str(batch.json()["id"])


def wait_for(server: Any, id: str, num_done: int) -> dict[str, Any]:
    """The batch once so many of its lines are done."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        answer = server.client.get(f"/v1/batches/{id}")
        assert answer.status_code == 200, answer.text
        batch: dict[str, Any] = answer.json()
        if batch["request_counts"]["completed"] >= num_done or batch["completed_at"]:
            return batch
        assert batch["failed_at"] is None, batch
        assert time.monotonic() < deadline, batch
        time.sleep(0.05)


def check_results(server: Any, id: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while (batch := wait_for(server, id, NUM_LINES))["status"] != "completed":
        assert time.monotonic() < deadline, batch
        time.sleep(0.05)
    assert batch["request_counts"] == {"total": NUM_LINES, "completed": NUM_LINES, "failed": 0}
    assert batch["error_file_id"] is None
    text = server.client.get(f"/v1/files/{batch['output_file_id']}/content").text
    lines = [json.loads(line) for line in text.splitlines()]
    assert sorted(line["custom_id"] for line in lines) == sorted(f"n{n}" for n in range(NUM_LINES))
    for line in lines:
        choice = line["response"]["body"]["choices"][0]
        assert choice["message"]["content"] == "one two three"


def kill_all(server: Any) -> None:
    """As a power failure ends a server: no process sees another one end."""
    everybody = [*server.children, psutil.Process(server.process.pid)]
    for process in everybody:
        process.suspend()
    for process in everybody:
        process.kill()
    server.process.wait()


def test_a_batch_outlives_its_engine_and_its_worker(serve: Any, options: Any) -> None:
    server = serve(options=options, NIM_API_WORKERS="2")
    id = begin(server)
    wait_for(server, id, 40)
    server.engine.kill()
    wait_for(server, id, 120)
    for worker in [each for each in server.children if "service.run.worker" in each.cmdline()]:
        worker.kill()
        worker.wait(PATIENCE_S)
    server.wait_for_ready()
    check_results(server, id)
    assert server.interrupt() == 0


def test_a_batch_outlives_its_server(serve: Any, options: Any, tmp_path: Path) -> None:
    server = serve(options=options)
    id = begin(server)
    for num_done in (40, 150):
        wait_for(server, id, num_done)
        kill_all(server)
        server = serve(tmp_path / f"log-{num_done}.txt", options)
    check_results(server, id)
    assert server.interrupt() == 0


def test_the_batch_of_a_killed_pod_is_completed_by_another(
    serve: Any, options: Any, redis_url: str, tmp_path: Path
) -> None:
    pods = [
        serve(
            tmp_path / f"{name}.log",
            options,
            NIM_REDIS_URL=redis_url,
            NIM_CACHE_PATH=str(tmp_path / name),
            NIM_FILES_PATH=str(tmp_path / "files"),
        )
        for name in "ab"
    ]
    dying, other = pods
    id = begin(dying)
    wait_for(dying, id, 60)
    kill_all(dying)
    check_results(other, id)
    assert other.interrupt() == 0


def test_a_stop_gives_a_batch_back(serve: Any, options: Any, tmp_path: Path) -> None:
    server = serve(options=options)
    id = begin(server)
    wait_for(server, id, 40)
    assert server.interrupt() == 0
    server = serve(tmp_path / "after.txt", options)
    check_results(server, id)
    assert server.interrupt() == 0


def begin_messages(server: Any) -> str:
    params = {"model": "nano", "max_tokens": 16, "messages": [{"role": "user", "content": "Hi"}]}
    requests = [{"custom_id": f"n{n}", "params": params} for n in range(NUM_LINES)]
    made = server.client.post("/v1/messages/batches", json={"requests": requests})
    assert made.status_code == 200, made.text
    return str(made.json()["id"])


def shown_as_batch(server: Any, id: str) -> str:
    """OpenAI's routes, which say how far it is, name the same batch."""
    found = server.client.get("/v1/batches").json()["data"]
    assert len(found) == 1
    return str(found[0]["id"])


@needs("messages")
def test_a_message_batch_outlives_its_engine_and_its_server(
    serve: Any, options: Any, tmp_path: Path
) -> None:
    server = serve(options=options)
    id = begin_messages(server)
    batch = shown_as_batch(server, id)
    wait_for(server, batch, 40)
    server.engine.kill()
    for num_done in (100, 200):
        wait_for(server, batch, num_done)
        kill_all(server)
        server = serve(tmp_path / f"log-{num_done}.txt", options)
    deadline = time.monotonic() + PATIENCE_S
    while (found := server.client.get(f"/v1/messages/batches/{id}").json())[
        "processing_status"
    ] != "ended":
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    counts = {"processing": 0, "succeeded": NUM_LINES, "errored": 0, "canceled": 0, "expired": 0}
    assert found["request_counts"] == counts
    lines = server.client.get(found["results_url"]).text.splitlines()
    results = [json.loads(line) for line in lines]
    assert sorted(each["custom_id"] for each in results) == sorted(
        f"n{n}" for n in range(NUM_LINES)
    )
    for each in results:
        assert each["result"]["type"] == "succeeded"
        assert [part["text"] for part in each["result"]["message"]["content"]] == ["one two three"]
    assert server.interrupt() == 0
