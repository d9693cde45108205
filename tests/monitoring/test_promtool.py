"""Debian's Prometheus scrapes a live server; promtool checks what we ship against it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from service.harmony import vocabulary
from tests import loopback
from tests.monitoring.test_runbooks import QUERIES

pytestmark = [
    pytest.mark.monitoring,
    pytest.mark.skipif(
        shutil.which("promtool") is None or shutil.which("prometheus") is None,
        reason="Debian's package prometheus is not installed",
    ),
]

PROGRAM = Path(__file__).parents[1] / "service" / "serve_scripted.py"
PATIENCE_S = 180
KEY = "a-key-of-the-test"
HEADERS = {"Authorization": f"Bearer {KEY}"}
BODY = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
FINAL = [vocabulary.CHANNEL, *vocabulary.encode_text("final"), vocabulary.MESSAGE]
SCRIPT = [*FINAL, *vocabulary.encode_text("Good day to you"), vocabulary.RETURN]


def promtool(*arguments: str | Path, stdin: str | None = None) -> str:
    """Its output; fails with its words."""
    result = subprocess.run(
        ["promtool", *arguments], input=stdin, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def until(condition: Callable[[], Any]) -> Any:
    """The first value that is true."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            if value := condition():
                return value
        except httpx2.HTTPError:
            pass
        time.sleep(0.1)
    raise AssertionError("it did not come about")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that has answered, refused and lost something of every kind."""
    folder = tmp_path_factory.mktemp("server")
    log = folder / "log"
    port, nowhere = loopback.free_port(), loopback.free_port()
    options = {"script": SCRIPT, "step_s": 0.002}
    flags = [f"--server-port={port}", "--served-model-name=m", f"--cache-path={folder}"]
    environment = os.environ | {
        "NIM_API_KEYS": KEY,
        "NIM_RATE_LIMIT_REQUESTS": "20",
        "NIM_ENABLE_OTEL": "1",
        "NIM_OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{loopback.IN_URL}:{nowhere}",
    }
    with log.open("w") as stream:
        process = subprocess.Popen(
            [sys.executable, str(PROGRAM), json.dumps(options), "serve", *flags],
            stderr=stream,
            env=environment,
        )
    url = f"http://{loopback.IN_URL}:{port}"
    try:
        until(lambda: httpx2.get(f"{url}/v1/health/ready").status_code == 200)
        yield url
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


@pytest.fixture(scope="module")
def prometheus(
    server: str, rules_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A Prometheus that has scraped the server before, while and after it was used."""
    folder = tmp_path_factory.mktemp("prometheus")
    config = folder / "prometheus.yml"
    scrape = {
        "job_name": "harmonium",
        "metrics_path": "/metrics",
        "authorization": {"credentials": KEY},
        "static_configs": [{"targets": [server.removeprefix("http://")]}],
    }
    settings = {
        "global": {"scrape_interval": "500ms", "evaluation_interval": "1s"},
        "rule_files": [str(rules_path)],
        "scrape_configs": [scrape],
    }
    config.write_text(yaml.safe_dump(settings))
    promtool("check", "config", config)
    port = loopback.free_port()
    command = [
        "prometheus",
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={loopback.IN_URL}:{port}",
    ]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stderr=log, stdout=log)
    url = f"http://{loopback.IN_URL}:{port}"
    try:
        until(lambda: value(url, 'up{job="harmonium"}') == 1)
        use(server)
        until(lambda: value(url, 'sum(harmonium_telemetry_dropped_total{signal="traces"})'))
        until(lambda: value(url, "sum(harmonium_rate_limited_total)"))
        use(server)
        seen = value(url, "sum(harmonium_http_requests_total)") or 0
        until(lambda: (value(url, "sum(harmonium_http_requests_total)") or 0) > seen)
        until(lambda: value(url, "count(count_over_time(harmonium_rate_limited_total[10s]) > 1)"))
        yield url
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def use(server: str) -> None:
    """Requests that are answered, refused and turned away."""
    with httpx2.Client(base_url=server, timeout=PATIENCE_S) as client:
        for _ in range(25):
            client.post("/v1/chat/completions", json=BODY, headers=HEADERS)
        wrong = {"Authorization": "Bearer nobody's"}
        assert client.post("/v1/chat/completions", json=BODY, headers=wrong).status_code == 401


def value(url: str, expression: str) -> float | None:
    """An instant query's first sample."""
    answer = httpx2.get(f"{url}/api/v1/query", params={"query": expression})
    if answer.status_code == 503:
        return None  # it is starting
    result = answer.json()["data"]["result"]
    return float(result[0]["value"][1]) if result else None


def test_the_rules_are_valid(rules_path: Path) -> None:
    promtool("check", "rules", rules_path)


def test_the_alerts_fire_when_they_should(rules_path: Path, tmp_path: Path) -> None:
    text = (Path(__file__).parent / "rules_test.yaml").read_text()
    tests = tmp_path / "rules_test.yaml"
    tests.write_text(text.replace("RULES", str(rules_path)))
    promtool("test", "rules", tests)


def test_our_exposition_passes_the_lint(server: str, prometheus: str) -> None:
    text = httpx2.get(f"{server}/metrics", headers=HEADERS).text
    ours = [line for line in text.splitlines(keepends=True) if "harmonium_" in line]
    promtool("check", "metrics", stdin="".join(ours))


@pytest.mark.parametrize("page", ["/metrics", "/v1/metrics"])
def test_prometheus_can_read_both_pages(server: str, page: str) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    text = httpx2.get(server + page, headers=HEADERS).text
    assert list(text_string_to_metric_families(text))


def test_every_panel_shows_something(
    prometheus: str, panels: dict[str, list[str]], instantly: Callable[[str], str]
) -> None:
    empty = []
    for title, expressions in panels.items():
        for expression in expressions:
            output = promtool("query", "instant", prometheus, instantly(expression))
            if not output.strip() and not title.startswith("GPU"):  # there may be none here
                empty.append((title, expression))
    assert not empty


@pytest.mark.parametrize("query", QUERIES)
def test_the_runbooks_queries_can_be_asked(prometheus: str, query: str) -> None:
    promtool("query", "instant", prometheus, query)


def test_every_alert_can_be_evaluated(prometheus: str, alerts: dict[str, str]) -> None:
    def healths() -> list[str]:
        groups = httpx2.get(f"{prometheus}/api/v1/rules").json()["data"]["groups"]
        found = [rule["health"] for group in groups for rule in group["rules"]]
        return [] if "unknown" in found else found

    evaluated = until(healths)
    assert len(evaluated) > len(alerts), "rules that record are evaluated too"
    assert set(evaluated) == {"ok"}
