"""The availability objective: whose failure the end of an answer is."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from service.admission.gate import Bounds, Gate
from service.admission.lifecycle import Phase

Fixture = Callable[..., Any]

PATH = "/v1/chat/completions"
SCRIPT = "<|channel|>final<|message|>Hi there, all of you<|return|>"
LONG = "<|channel|>final<|message|>" + "word " * 400


async def counted(client: httpx2.AsyncClient) -> dict[str, float]:
    """How many answers ended how; what was never counted is left out."""
    page = (await client.get("/metrics")).text
    found = re.findall(r'^harmonium_answers_total\{.*result="(\w+)".*\} (\S+)$', page, re.M)
    return {result: float(number) for result, number in found if float(number)}


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_whole_answer_is_counted(
    make_runtime: Fixture, make_client: Fixture, chat_body: Fixture, is_streamed: bool
) -> None:
    client = await make_client(make_runtime(SCRIPT))
    await client.post(PATH, json=chat_body(stream=is_streamed))
    assert await counted(client) == {"ok": 1}


async def test_a_stream_that_fails_after_its_first_token_is_an_error(
    make_runtime: Fixture,
    make_client: Fixture,
    chat_body: Fixture,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "harmonium.access")
    client = await make_client(make_runtime(SCRIPT, fail_at=5))
    answer = await client.post(PATH, json=chat_body(stream=True))
    assert answer.status_code == 200
    assert await counted(client) == {"error": 1}
    page = (await client.get("/metrics")).text
    assert f'harmonium_errors_total{{code="request_failed",route="{PATH}"}} 1.0' in page
    (line,) = [r for r in caplog.records if r.name == "harmonium.access" and PATH in r.message]
    assert line.access["error_code"] == "request_failed"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("limit_s", "headers", "result"),
    [
        (None, {"X-Request-Timeout-Ms": "100"}, "excluded"),
        (60.0, {"X-Request-Timeout-Ms": "100"}, "excluded"),
        (0.1, {}, "error"),
        (0.1, {"X-Request-Timeout-Ms": "60000"}, "error"),
    ],
)
@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_deadline_counts_when_the_server_set_it(
    make_runtime: Fixture,
    make_client: Fixture,
    chat_body: Fixture,
    limit_s: float | None,
    headers: dict[str, str],
    result: str,
    is_streamed: bool,
) -> None:
    gate = Gate(Bounds(timeout_s=limit_s))
    client = await make_client(make_runtime(LONG, step_s=0.005, gate=gate))
    await client.post(PATH, json=chat_body(stream=is_streamed), headers=headers)
    assert await counted(client) == {result: 1}


async def test_faults_of_requests_and_probes_are_no_failures(
    make_runtime: Fixture, make_client: Fixture, chat_body: Fixture
) -> None:
    client = await make_client(make_runtime(SCRIPT))
    for path in ("/health", "/v1/health/ready", "/v1/models", "/v1/nothing"):
        await client.get(path)
    assert await counted(client) == {}
    await client.post(PATH, json=chat_body(temperature=9))
    await client.post(PATH, content=b"{")
    assert await counted(client) == {"excluded": 2}


async def test_a_server_that_starts_or_stops_is_no_failure(
    make_runtime: Fixture, make_client: Fixture, chat_body: Fixture
) -> None:
    runtime = make_runtime(SCRIPT, fail_at=5)
    client = await make_client(runtime)
    for phase in (Phase.STARTING, Phase.DRAINING):
        runtime.lifecycle.phase = phase
        assert (await client.post(PATH, json=chat_body())).status_code == 503
    assert await counted(client) == {"excluded": 2}


async def test_an_engine_that_is_down_is_a_failure(
    make_runtime: Fixture, make_client: Fixture, chat_body: Fixture
) -> None:
    runtime = make_runtime(SCRIPT)
    client = await make_client(runtime)
    await runtime.engine.stop()
    answer = await client.post(PATH, json=chat_body())
    assert answer.status_code == 503
    assert await counted(client) == {"error": 1}


async def test_a_stream_that_a_stop_cuts_is_no_failure(
    make_runtime: Fixture, make_client: Fixture, chat_body: Fixture
) -> None:
    runtime = make_runtime(LONG, step_s=0.01)
    client = await make_client(runtime)
    asking = asyncio.create_task(client.post(PATH, json=chat_body(stream=True)))
    async with asyncio.timeout(60):
        while not (await runtime.engine.stats()).num_running:
            await asyncio.sleep(0)
    assert not await runtime.lifecycle.drain(0.0)
    await runtime.engine.stop()
    assert '"error"' in (await asking).text
    assert await counted(client) == {"excluded": 1}
