"""The request may come to another API worker than the one that streams."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

Fixture = Callable[..., Any]

pytestmark = pytest.mark.heavy

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "Hi"}]
END = {"action": "reasoning_end"}
BODY = {"model": "nano", "messages": MESSAGES, "stream": True}
SCRIPT = Path(__file__).parent / "thinker.py"


def chunks(streamed: httpx2.Response) -> Iterator[Any]:
    return (json.loads(line[6:]) for line in streamed.iter_lines() if line.startswith("data: {"))


def told(client: httpx2.Client, id: str) -> int:
    return client.post(f"{CHAT}/{id}/control", json=END).status_code


def content_of(seen: Iterator[Any]) -> str:
    deltas = (choice["delta"] for chunk in seen for choice in chunk["choices"])
    return "".join(delta.get("content", "") for delta in deltas)


def test_each_worker_finds_the_answers_of_the_other(serve: Fixture) -> None:
    server = serve(script=[], script_file=str(SCRIPT), step_s=0.002).ready()
    first, second = (server.client_of(worker) for worker in server.workers)
    for streaming, telling in ((first, second), (second, first)):
        with streaming.stream("POST", CHAT, json=BODY) as streamed:
            seen = chunks(streamed)
            id = next(seen)["id"]
            assert told(telling, id) == 200
            assert content_of(seen) == "Hello!"
        assert told(telling, id) == 404
    # A worker that dies leaves a socket at which nobody listens.
    dead = server.workers[0]
    client = server.client_of(server.workers[1])
    dead.kill()
    psutil.wait_procs([dead])
    assert told(client, id) == 404
    assert "did not say" not in server.log
    server.process.terminate()
    assert server.exit_code() == 0
