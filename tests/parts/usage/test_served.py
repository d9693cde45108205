"""`harmonium serve` with nano: the engine's seconds are its callers'."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests import plain
from tests.e2e.conftest import READY_WITHIN_S, StartServer

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif("TEST_ENGINE_PYTHON" in os.environ, reason="of the native engine"),
]

ALL_SCOPES = "inference,models,metrics,admin"


def test_the_seconds_of_engines_are_those_of_their_callers_in_all_workers(
    start_server: StartServer, tmp_path: Path
) -> None:
    """Two engines, two API workers, two keys: each second is one key's, and counted once."""
    program, keys = str(Path(sys.executable).parent / "harmonium"), tmp_path / "keys.json"
    made = [
        subprocess.run(
            [program, "keys", "create", name, "--tenant", name, "--scopes", scopes],
            env=os.environ | {"NIM_API_KEYS_PATH": str(keys)}, capture_output=True, text=True,
            check=True,
        ).stdout.split()[-1]
        for name, scopes in (("ann", "inference"), ("bob", "inference"), ("ops", ALL_SCOPES))
    ]  # fmt: skip
    ann, bob, ops = ({"Authorization": f"Bearer {key}"} for key in made)
    server = start_server(
        [program, "serve", "--model-name=nano", "--usage", "--replicas=2", "--api-workers=2",
         f"--api-keys-path={keys}"]
    )  # fmt: skip
    url, timeout = f"{server.url}/v1/chat/completions", READY_WITHIN_S

    def counted() -> list[float]:
        page = plain.get(f"{server.url}/metrics", headers=ops, timeout=timeout).text
        series = r"^harmonium_engine_gpu_seconds_total{[^}]*} (\S+)$"
        return [float(each) for each in re.findall(series, page, re.MULTILINE)]

    def ask(headers: dict[str, str]) -> int:
        messages = [{"role": "user", "content": "Hi " * 60}]
        body = {"model": "nano", "messages": messages, "max_tokens": 60, "ignore_eos": True}
        return plain.post(url, json=body, headers=headers, timeout=timeout).status_code

    before = counted()
    with ThreadPoolExecutor(8) as pool:
        assert {*pool.map(ask, [ann, ann, bob] * 8)} == {200}
    used = sum(counted()) - sum(before)
    requests, seconds, end_s = Counter[str](), Counter[str](), time.monotonic() + READY_WITHIN_S
    while requests.total() < 24 or sum(seconds.values()) < 0.9 * used:  # a worker writes late
        assert time.monotonic() < end_s, (requests, seconds, used)
        query = f"{server.url}/v1/usage?group_by=tenant"
        rows = plain.get(query, headers=ops, timeout=timeout).json()["data"]
        requests = Counter({row["tenant"]: row["requests"] for row in rows})
        seconds = Counter({row["tenant"]: row["gpu_seconds"] for row in rows})
    assert requests == {"ann": 16, "bob": 8}
    assert sum(seconds.values()) == pytest.approx(used, rel=0.1)
    assert seconds["ann"] == pytest.approx(2 * seconds["bob"], rel=0.4)
    assert server.interrupt() == 0


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
