"""The engine dies, hangs or runs out of memory: what clients and probes are told."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from tests.faults.families import CHAT, REQUESTS
from tests.needs import needs

pytestmark = pytest.mark.faults

WORDS = {"kill": "catastrophe", "stall": "paralysis", "memory": "amnesia"}


def harmful(server: Any, kind: str, **body: Any) -> httpx2.Response:
    messages = [{"role": "user", "content": WORDS[kind]}]
    answer: httpx2.Response = server.post("/v1/chat/completions", messages=messages, **body)
    return answer


def code_of(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_each_fault_costs_its_own_request_and_the_service_comes_back(
    serve: Any, harmony_ids: Callable[[str], list[int]]
) -> None:
    tokens = {kind: harmony_ids(word)[0] for kind, word in WORDS.items()}
    faults = [
        {"token": tokens["kill"], "kind": "kill"},
        {"token": tokens["stall"], "kind": "stall", "after": 5},
        {"token": tokens["memory"], "kind": "memory"},
    ]
    server = serve(options={"faults": faults}, NIM_ENGINE_STEP_TIMEOUT_S="1")

    # Out of memory: come again.
    first = server.engine.pid
    lost = harmful(server, "memory")
    assert code_of(lost) == (503, "out_of_memory")
    assert lost.headers["Retry-After"]
    assert server.chat().status_code == 200

    # No step ends any more, twice: the stream ends with an error, and another engine starts.
    events = harmful(server, "stall", stream=True).text.split("\n\n")
    assert json.loads(events[-3].removeprefix("data: "))["error"]["code"] == "request_quarantined"
    assert events[-2] == "data: [DONE]"
    server.wait_for_ready()
    assert server.engine.pid != first

    # Two deaths, then nobody else has to suffer from it.
    assert code_of(harmful(server, "kill")) == (422, "request_quarantined")
    server.wait_for_ready()
    survivor = server.engine.pid
    for is_streamed in (False, True):
        refused = harmful(server, "kill", stream=is_streamed)
        assert code_of(refused) == (422, "request_quarantined")
    assert server.chat().status_code == 200
    assert server.engine.pid == survivor
    assert server.interrupt() == 0


@pytest.mark.parametrize("path", REQUESTS)
def test_a_whole_answer_outlives_the_engine(serve: Any, path: str) -> None:
    body = REQUESTS[path] | ({"n": 2} if path == CHAT else {})
    server = serve(options={"step_s": 0.1})
    server.post(path, **body)
    whole = server.post(path, **body).json()  # its prompt is cached, as that of the one below
    answers: list[httpx2.Response] = []
    asking = threading.Thread(target=lambda: answers.append(server.post(path, **body)))
    num_before = tokens_generated(server)
    asking.start()
    deadline_s = time.monotonic() + 30
    while tokens_generated(server) < num_before + 3:
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    server.engine.kill()
    asking.join(60)
    (answer,) = answers
    assert answer.status_code == 200
    assert ids_left_out(answer.json()) == ids_left_out(whole)
    assert server.interrupt() == 0


@needs("decisions")
def test_decisions_outlive_the_engine(serve: Any) -> None:
    """Each question that was open is asked again; the others are not."""
    server = serve(is_native=True)
    asked = [{"type": "predicate", "instructions": f"Is it {n} o'clock?"} for n in range(200)]
    body = {"input": "It is late. " * 40, "questions": asked}
    whole = server.post("/v1/decisions", **body).json()
    answers: list[httpx2.Response] = []
    asking = threading.Thread(target=lambda: answers.append(server.post("/v1/decisions", **body)))
    num_before = tokens_generated(server)
    asking.start()
    deadline_s = time.monotonic() + 60
    while tokens_generated(server) < num_before + 20:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    assert not answers, "the answer ended before the engine was killed"
    server.engine.kill()
    asking.join(180)
    (answer,) = answers
    assert answer.status_code == 200
    found = [each["probability"] for each in answer.json()["answers"]]
    assert found == pytest.approx([each["probability"] for each in whole["answers"]], abs=1e-4)
    assert server.interrupt() == 0


def tokens_generated(server: Any) -> float:
    text = server.client.get("/v1/metrics").text
    found = re.search(r"^generation_tokens_total\{.*\} (\S+)$", text, re.M)
    return float(found[1]) if found else 0.0


def ids_left_out(value: Any) -> Any:
    """What must be the same in two answers to one question."""
    if isinstance(value, dict):
        changing = {"id", "created", "created_at", "completed_at"}
        return {key: ids_left_out(item) for key, item in value.items() if key not in changing}
    return [ids_left_out(item) for item in value] if isinstance(value, list) else value
