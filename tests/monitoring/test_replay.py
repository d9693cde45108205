"""Alerts on the metrics of real servers that fail, start, drain, roll or idle: who is paged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests import loopback, plain
from tests.monitoring.replaying import NEEDS_PROMTOOL, PATIENCE_S, Minute, check, minute_of
from tests.monitoring.test_promtool import BODY, FINAL, SCRIPT
from tests.service.run.serving import Serving

pytestmark = [pytest.mark.monitoring, NEEDS_PROMTOOL]

NUM_REQUESTS: Final = 10
STREAM: Final = BODY | {"stream": True}
CHAT: Final = "/v1/chat/completions"
PROBES: Final = ("/health", "/ping", "/v1/health/live", "/v1/health/ready", "/metrics", "/")
OPTIONS: Final = {"script": SCRIPT}
ENDLESS: Final = {"script": [1], "step_s": 0.2}


@contextmanager
def serving(
    folder: Path, options: dict[str, Any], *more: str, **environment: str
) -> Iterator[Serving]:
    flags = ("--served-model-name=m", f"--cache-path={folder}", *more)
    server = Serving(options, *flags, **environment)
    try:
        yield server
    finally:
        server.end()


def ask(url: str, *, is_answered: bool) -> None:
    """Streams, all of which end well or with an error event."""
    for _ in range(NUM_REQUESTS):
        answer = plain.post(f"{url}{CHAT}", json=STREAM, timeout=PATIENCE_S)
        assert answer.status_code == 200
        assert ('data: {"error"' not in answer.text) is is_answered


def be_refused(url: str) -> None:
    """Probes, pages and requests at a server that starts or stops."""
    probe(url)
    for _ in range(NUM_REQUESTS):
        assert plain.post(f"{url}{CHAT}", json=STREAM, timeout=PATIENCE_S).status_code == 503


def probe(url: str) -> None:
    for path in PROBES:
        for _ in range(NUM_REQUESTS):
            plain.get(f"{url}{path}", timeout=PATIENCE_S)


@pytest.fixture(scope="module")
def minutes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Minute]:
    """A minute of each kind, from real servers."""
    folder, found = tmp_path_factory.mktemp("replay"), dict[str, Minute]()
    with serving(folder, OPTIONS) as server:
        server.until_ready_is(200)
        ask(server.url, is_answered=True)  # its series exist
        found["idle"] = minute_of(server.url, lambda: probe(server.url))
        found["healthy"] = minute_of(server.url, lambda: ask(server.url, is_answered=True))
    with serving(folder, OPTIONS | {"fail_at": len(FINAL) + 1}) as server:
        server.until_ready_is(200)
        found["failing"] = minute_of(server.url, lambda: ask(server.url, is_answered=False))
    port = loopback.free_port()
    with serving(folder, OPTIONS | {"start_s": 600}, f"--server-port={port}") as server:
        server.wait_for("native engine")
        url = f"http://{loopback.IN_URL}:{port}"
        found["starting"] = minute_of(url, lambda: be_refused(url))
    with serving(folder, ENDLESS, NIM_DRAIN_GRACE_S="600") as server:
        server.until_ready_is(200)
        url = f"{server.url}{CHAT}"
        body = STREAM | {"ignore_eos": True, "max_tokens": 100_000}
        with plain.stream("POST", url, json=body, timeout=PATIENCE_S) as answer:
            lines = answer.iter_lines()  # it leaves with its last reader
            next(lines)
            server.process.terminate()
            server.wait_for("Stopping")
            found["draining"] = minute_of(server.url, lambda: be_refused(server.url))
    return found


def test_an_engine_that_fails_each_answer_after_its_first_token_pages_within_five_minutes(
    minutes: dict[str, Minute], rules_path: Path, tmp_path: Path
) -> None:
    """After two hours of health, and as one of three pods."""
    healthy = [minutes["healthy"]] * 130
    bad = [minutes["healthy"]] * 120 + [minutes["failing"]] * 10
    check(tmp_path, rules_path, {"a": bad}, HarmoniumErrorsBurnFast=(119, 124))
    pods = {"a": bad, "b": healthy, "c": healthy}
    check(tmp_path, rules_path, pods, HarmoniumErrorsBurnFast=(119, 124))


@pytest.mark.parametrize("kind", ["starting", "draining"])
def test_a_start_and_a_drain_page_nobody(
    minutes: dict[str, Minute], rules_path: Path, tmp_path: Path, kind: str
) -> None:
    pod = [minutes["healthy"]] * (60 if kind == "draining" else 0) + [minutes[kind]] * 25
    pod += [] if kind == "draining" else [minutes["healthy"]] * 60
    check(tmp_path, rules_path, {"a": pod})


def test_an_idle_pod_pages_nobody(
    minutes: dict[str, Minute], rules_path: Path, tmp_path: Path
) -> None:
    check(tmp_path, rules_path, {"a": [minutes["idle"]] * 240})


def test_a_roll_pages_nobody(minutes: dict[str, Minute], rules_path: Path, tmp_path: Path) -> None:
    """Two pods drain and go, one after the other, each once another has started."""
    healthy, starting, draining = (minutes[kind] for kind in ("healthy", "starting", "draining"))
    pods: dict[str, list[Minute | None]] = {
        "a": [healthy] * 70 + [draining] * 3 + [None] * 90,
        "b": [healthy] * 80 + [draining] * 3 + [None] * 80,
        "c": [None] * 60 + [starting] * 10 + [healthy] * 93,
        "d": [None] * 73 + [starting] * 7 + [healthy] * 83,
    }
    check(tmp_path, rules_path, pods)
