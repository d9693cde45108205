"""`harmonium serve` with nano: the engine's seconds are its callers'."""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests import plain
from tests.e2e.conftest import READY_WITHIN_S, StartServer

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif("TEST_ENGINE_PYTHON" in os.environ, reason="of the native engine"),
]


def test_the_seconds_of_the_engine_are_its_callers(start_server: StartServer) -> None:
    program = str(Path(sys.executable).parent / "harmonium")
    server = start_server([program, "serve", "--model-name=nano", "--usage"])

    def get(path: str) -> Any:
        return plain.get(f"{server.url}{path}", timeout=READY_WITHIN_S)

    def counted() -> float:
        series = r"^harmonium_engine_gpu_seconds_total{[^}]*} (\S+)$"
        found = re.search(series, get("/metrics").text, re.MULTILINE)
        assert found is not None
        return float(found[1])

    def used() -> float:
        rows = get("/v1/usage").json()["data"]
        return float(rows[0]["gpu_seconds"]) if rows else 0.0

    body = {"model": "nano", "messages": [{"role": "user", "content": "Hi " * 60}], "n": 4}
    before = counted()  # what asked whether the engine generates
    url, timeout = f"{server.url}/v1/chat/completions", READY_WITHIN_S
    assert plain.post(url, json=body | {"max_tokens": 40}, timeout=timeout).status_code == 200
    answered = counted() - before
    assert used() == pytest.approx(answered, rel=0.1)
    leaves = body | {"max_tokens": 4000, "stream": True, "ignore_eos": True}
    with plain.stream("POST", url, json=leaves, timeout=timeout) as answer:
        for number, _ in enumerate(answer.iter_lines()):
            if number > 200:
                break
    while "harmonium_engine_running_requests" in (page := get("/metrics").text) and re.search(
        r"^harmonium_engine_running_requests{[^}]*} [1-9]", page, re.MULTILINE
    ):
        time.sleep(0.05)
    assert counted() - before > 1.5 * answered
    assert used() == pytest.approx(counted() - before, rel=0.1)
    assert server.interrupt() == 0
