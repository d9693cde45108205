"""The route of the metrics: what it leaves out, compresses and selects."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from engines.errors import EngineDead

Fixture = Callable[..., Any]

SCRIPT = "<|channel|>final<|message|>Hi<|return|>"


@pytest.fixture
async def client(make_runtime: Fixture, make_client: Fixture) -> Any:
    return await make_client(make_runtime(SCRIPT))


async def test_metrics_of_a_dead_engine_are_left_out(
    make_runtime: Fixture, make_client: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = make_runtime(SCRIPT)
    client = await make_client(runtime)

    async def dead() -> None:
        raise EngineDead("gone")

    assert "harmonium_engine_running_requests" in (await client.get("/v1/metrics")).text
    monkeypatch.setattr(runtime.engine, "stats", dead)
    metrics = await client.get("/v1/metrics")
    assert metrics.status_code == 200
    assert "harmonium_engine_running_requests" not in metrics.text
    assert "harmonium_requests_total" in metrics.text


@pytest.mark.parametrize("path", ["/v1/metrics", "/metrics"])
async def test_metrics_travel_compressed_to_those_who_take_that(client: Any, path: str) -> None:
    whole = await client.get(path, headers={"Accept-Encoding": "identity"})
    small = await client.get(path, headers={"Accept-Encoding": "gzip"})
    assert "content-encoding" not in whole.headers
    assert small.headers["content-encoding"] == "gzip"
    assert small.headers["content-type"] == whole.headers["content-type"]
    assert "# TYPE harmonium_info" in whole.text
    assert "# TYPE harmonium_info" in small.text
    assert int(small.headers["content-length"]) < int(whole.headers["content-length"]) / 4


async def test_metrics_can_be_asked_for_by_name(client: Any) -> None:
    name = "harmonium_engine_running_requests"
    params = {"name[]": [name, "harmonium_info"]}
    for path in ("/v1/metrics", "/metrics"):
        lines = (await client.get(path, params=params)).text.splitlines()
        samples = {re.split(r"[{ ]", line)[0] for line in lines if not line.startswith("#")}
        assert samples == {name, "harmonium_info"}
    assert (await client.get("/metrics", params={"name[]": "none"})).text == ""
