"""What a server has counted is what it had answered, over stops; over kills but for a second."""

from __future__ import annotations

import re
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from auth.base import Scope
from service.__main__ import main
from tests.needs import needs
from tests.redis_server import start_redis

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


@pytest.fixture
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a real Redis."""
    socket = tmp_path_factory.mktemp("redis") / "redis.sock"
    process = start_redis(socket)
    yield f"unix://{socket}"
    process.kill()
    process.wait()


@pytest.fixture
def make_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, str]]:
    """Make a key in `keys.json`; returns its header."""

    def make(*options: str) -> dict[str, str]:
        capsys.readouterr()
        assert main(["keys", "--path", str(tmp_path / "keys.json"), "create", "k", *options]) == 0
        return {"Authorization": f"Bearer {capsys.readouterr().out.strip()}"}

    return make


@needs("redis")
def test_two_servers_on_one_redis_have_one_sum_and_one_budget(
    serve: Any, harmony_ids: Any, tmp_path: Path, redis: str, make_key: Any
) -> None:
    admin = make_key(f"--scopes={','.join(Scope)}")
    team = [make_key("--tenant=team") for _ in range(2)]
    told = {
        "NIM_USAGE": "1",
        "NIM_REDIS_URL": redis,
        "NIM_API_KEYS_PATH": str(tmp_path / "keys.json"),
        "NIM_TENANT_BUDGETS": "team=2000/month",
    }

    def start(name: str) -> Any:
        own = told | {"NIM_CACHE_PATH": str(tmp_path / name.split("-")[0])}
        server = serve(tmp_path / f"{name}.log", {"script": harmony_ids(TEXT)}, **own)
        server.client.headers.update(admin)
        return server

    def spend(server: Any, key: dict[str, str]) -> int:
        """Ask as the tenant until it is refused; returns the tokens that were given."""
        body = {"model": "nano", "messages": [{"role": "user", "content": "Hi"}]}
        given = 0
        while True:
            answer = server.client.post("/v1/chat/completions", json=body, headers=key)
            if answer.status_code == 429:
                assert answer.json()["error"]["code"] == "insufficient_quota"
                return given
            assert answer.status_code == 200, answer.text
            given += answer.json()["usage"]["total_tokens"]

    one, other = start("one"), start("other")
    for server in (one, other):
        ask(server)  # of another tenant, which has no budget
    assert spend(one, team[0]) >= 2000
    spend(other, team[1])  # which learns of it within two seconds
    expected = counters(one) + counters(other)
    for server in (one, other):
        wait_for(server, expected)
    assert other.interrupt() == 0
    other = start("other-again")
    assert spend(other, team[1]) == 0
    ask(other)
    wait_for(one, expected + counters(other))
    assert spend(one, team[0]) == 0


def requests_in(store: Path) -> int:
    if not store.exists():
        return 0
    with closing(sqlite3.connect(store)) as connection:
        try:
            row = connection.execute("SELECT sum(requests) FROM usage_rows").fetchone()
        except sqlite3.OperationalError:  # no tables yet
            return 0
    return row[0] or 0
