"""What a server has counted is what it had answered, over stops; over kills but for a second."""

from __future__ import annotations

import re
import sqlite3
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.needs import needs

pytestmark = [pytest.mark.faults, needs("usage")]

PATIENCE_S = 180
SERIES = {
    "requests": "harmonium_requests_total",
    "input_tokens": "harmonium_prompt_tokens_total",
    "cached_tokens": "harmonium_cached_prompt_tokens_total",
    "output_tokens": "harmonium_completion_tokens_total",
    "reasoning_tokens": "harmonium_reasoning_tokens_total",
}
TEXT = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes."


def counters(server: Any) -> Counter[str]:
    page = server.client.get("/metrics").text
    found: Counter[str] = Counter()
    for name, series in SERIES.items():
        for value in re.findall(rf"^{series}{{[^}}]*}} (\S+)$", page, re.MULTILINE):
            found[name] += round(float(value))
    return found


def usage(server: Any) -> Counter[str]:
    answer = server.client.get("/v1/usage", params={"group_by": "model"})
    assert answer.status_code == 200, answer.text
    rows = answer.json()["data"]
    return Counter({name: sum(row[name] for row in rows) for name in SERIES})


def wait_for(server: Any, expected: Counter[str]) -> None:
    """Other workers, and other servers, write within a second."""
    deadline = time.monotonic() + PATIENCE_S
    while (found := usage(server)) != expected:
        assert found <= expected, "more than was answered"
        assert time.monotonic() < deadline, (found, expected)
        time.sleep(0.05)


def ask(server: Any) -> None:
    """Whole answers, a stream, and one whose client leaves."""
    for number in range(4):
        assert server.chat(max_tokens=20 + number).status_code == 200
    body = {"model": "nano", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    for leaves in (False, True):
        with server.client.stream(
            "POST", "/v1/chat/completions", json=body | {"max_tokens": 200}
        ) as answer:
            for line in answer.iter_lines():
                if leaves and line.startswith("data:"):
                    break


def test_usage_is_the_sum_of_the_counters_over_stops(
    serve: Any, harmony_ids: Any, tmp_path: Path
) -> None:
    options = {"script": harmony_ids(TEXT), "step_s": 0.005}
    expected: Counter[str] = Counter()
    for run in range(2):
        server = serve(tmp_path / f"{run}.log", options, NIM_USAGE="1", NIM_API_WORKERS="2")
        wait_for(server, expected)
        ask(server)
        deadline = time.monotonic() + PATIENCE_S
        while counters(server)["requests"] < 6:  # the one that was left ends a moment later
            assert time.monotonic() < deadline
            time.sleep(0.01)
        counted = counters(server)
        assert counted["requests"] == 6
        assert min(counted.values()) >= 0
        assert counted["reasoning_tokens"] > 0
        expected += counted
        assert server.interrupt() == 0
    server = serve(tmp_path / "last.log", options, NIM_USAGE="1")
    assert usage(server) == expected
    assert server.interrupt() == 0


def test_a_kill_loses_no_answer_that_is_older_than_a_second(
    serve: Any, harmony_ids: Any, tmp_path: Path
) -> None:
    options = {"script": harmony_ids(TEXT)}
    server = serve(tmp_path / "before.log", options, NIM_USAGE="1")
    for _ in range(8):
        assert server.chat(max_tokens=20).status_code == 200
    old = counters(server)
    store = tmp_path / "cache" / "responses" / "responses.sqlite"
    deadline = time.monotonic() + PATIENCE_S
    while requests_in(store) < old["requests"]:  # nobody asks the server for its usage
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert server.chat(max_tokens=20).status_code == 200
    new = counters(server)
    everybody = [*server.children, psutil.Process(server.process.pid)]
    for process in everybody:
        process.kill()
    server.process.wait()
    server = serve(tmp_path / "after.log", options, NIM_USAGE="1")
    found = usage(server)
    assert old <= found <= new
    assert server.interrupt() == 0


def requests_in(store: Path) -> int:
    if not store.exists():
        return 0
    with closing(sqlite3.connect(store)) as connection:
        try:
            row = connection.execute("SELECT sum(requests) FROM usage_rows").fetchone()
        except sqlite3.OperationalError:  # no tables yet
            return 0
    return row[0] or 0
