"""What alerts say while something fails without an error (tests/faults/test_gray.py)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import loopback, plain
from tests.faults import conftest, test_gray
from tests.faults.gray import Gray, LateAnswers, slowed
from tests.faults.test_gray import (
    LATE_S,
    YEAR_S,
    ask_until,
    statuses,
    stopped,
    two_engines,
    two_workers,
    wait_until_stored,
)
from tests.monitoring.replaying import NEEDS_PROMTOOL, PATIENCE_S, Minute, check, minute_of
from tests.needs import needs

pytestmark = [pytest.mark.monitoring, NEEDS_PROMTOOL]

NUM_REQUESTS = 20
serve, harmony_ids, redis = conftest.serve, conftest.harmony_ids, test_gray.redis


@pytest.fixture
def told(rules_path: Path, tmp_path: Path) -> Callable[..., None]:
    """Checks which alerts fire in half an hour of health and half an hour of the fault."""

    def check_alerts(healthy: Minute, gray: Minute, *alerts: str) -> None:
        check(tmp_path, rules_path, {"a": [healthy] * 30 + [gray] * 30}, ever=alerts)

    return check_alerts


def minute(server: Any) -> Minute:
    def ask() -> None:
        assert statuses(server, NUM_REQUESTS) == {200}

    return minute_of(str(server.client.base_url).rstrip("/"), ask)


@needs("responses")
def test_a_slow_disk_under_stored_responses(serve: Any, told: Any, tmp_path: Path) -> None:
    gray = Gray(tmp_path, tmp_path / "store")
    store = str(tmp_path / "store" / "responses.sqlite")
    server = serve(NIM_RESPONSES_PATH=store, **gray.environment)
    wait_until_stored(server)

    def ask(status: int, **more: Any) -> None:
        body = {"model": "nano", "input": "Hi", **more}
        for _ in range(NUM_REQUESTS):
            answer = plain.post(f"{url}/v1/responses", json=body, timeout=PATIENCE_S)
            assert answer.status_code == status
            assert not answer.json().get("store")

    url, healthy = str(server.client.base_url).rstrip("/"), minute(server)
    gray.set_disk(10 * LATE_S)
    told(healthy, minute_of(url, lambda: ask(200)))
    refused = minute_of(url, lambda: ask(503, background=True))
    told(healthy, refused, *(f"HarmoniumErrorsBurn{speed}" for speed in ("Fast", "Steady", "Slow")))
    gray.set_disk(0)


@needs("redis")
def test_a_slow_redis(serve: Any, redis: LateAnswers, told: Any) -> None:
    url = f"redis://{loopback.IN_URL}:{redis.port}"
    server = serve(NIM_REDIS_URL=url, NIM_RATE_LIMIT_REQUESTS="1000")
    healthy = minute(server)
    redis.delay_s = 0.8
    told(healthy, minute(server))
    redis.delay_s = 0.0


@needs("redis")
def test_names_that_cannot_be_looked_up(
    serve: Any, redis: LateAnswers, told: Any, tmp_path: Path
) -> None:
    gray = Gray(tmp_path, tmp_path / "none")
    url = f"redis://localhost:{redis.port}"
    server = serve(NIM_REDIS_URL=url, NIM_RATE_LIMIT_REQUESTS="1000", **gray.environment)
    healthy = minute(server)
    gray.set_names(20.0)
    told(healthy, minute(server))
    gray.set_names(0.0)


@pytest.mark.parametrize("jump_s", [YEAR_S, -YEAR_S])
def test_a_clock_that_jumps(serve: Any, told: Any, tmp_path: Path, jump_s: float) -> None:
    gray = Gray(tmp_path, tmp_path / "none")
    server = serve(NIM_RATE_LIMIT_REQUESTS="1000", **gray.environment)
    healthy = minute(server)
    gray.set_clock(jump_s)
    told(healthy, minute(server))
    gray.set_clock(0)


def test_a_stopped_worker(serve: Any, told: Any, tmp_path: Path) -> None:
    server = two_workers(serve, tmp_path / "log.txt")
    healthy = minute(server)
    with stopped(server.api):
        gray = minute(server)
    told(healthy, gray)


def test_a_slow_engine(serve: Any, harmony_ids: Any, told: Any, tmp_path: Path) -> None:
    server = two_engines(serve, harmony_ids)
    healthy = minute(server)
    with slowed(server.engine, 0.05):
        ask_until(server, "requests avoid it", tmp_path / "log.txt")
        told(healthy, minute(server), "HarmoniumReplicaSlow")
