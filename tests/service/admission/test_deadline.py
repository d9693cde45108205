"""A request ends when its time is up: with a clear error, and nothing of it left in the engine."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest

from service.admission.gate import Bounds, Gate
from service.runtime import Runtime

PATH = "/v1/chat/completions"
LONG = "<|channel|>final<|message|>" + "word " * 400 + "<|return|>"


async def assert_idle(runtime: Runtime) -> None:
    async with asyncio.timeout(60):
        while (stats := await runtime.engine.stats()).num_running:
            await asyncio.sleep(0.005)
    assert stats.num_free_kv_blocks == stats.num_kv_blocks
    assert runtime.lifecycle.num_running == 0


@pytest.fixture
def start(make_runtime: Any, make_client: Any) -> Any:
    async def make(**options: Any) -> tuple[Runtime, httpx2.AsyncClient]:
        runtime = make_runtime(LONG, step_s=0.02, **options)
        return runtime, await make_client(runtime)

    return make


async def test_a_whole_answer_that_takes_too_long_is_a_504(start: Any, chat_body: Any) -> None:
    runtime, client = await start()
    headers = {"X-Request-Timeout-Ms": "120"}
    answer = await client.post(PATH, json=chat_body(), headers=headers)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["code"]) == (
        504,
        "timeout_error",
        "deadline_exceeded",
    )
    assert "limit of 0.12 s" in error["message"]
    await assert_idle(runtime)


async def test_a_stream_ends_with_the_error_and_its_terminator(
    start: Any, chat_body: Any, events: Any
) -> None:
    runtime, client = await start()
    headers = {"X-Request-Timeout-Ms": "600"}
    answer = await client.post(PATH, json=chat_body(stream=True), headers=headers)
    *some, error, done = events(answer.text)
    assert answer.status_code == 200
    assert some[1]["choices"][0]["delta"]["content"] == "word"
    assert error["error"]["code"] == "deadline_exceeded"
    assert done == "[DONE]"
    await assert_idle(runtime)


async def test_the_setting_bounds_every_request_and_a_header_only_shortens_it(
    start: Any, chat_body: Any
) -> None:
    runtime, client = await start(gate=Gate(Bounds(timeout_s=0.1)))
    for headers in ({}, {"X-Request-Timeout-Ms": "60000"}):
        answer = await client.post(PATH, json=chat_body(n=2), headers=headers)
        assert answer.status_code == 504
        assert "limit of 0.1 s" in answer.json()["error"]["message"]
    await assert_idle(runtime)


async def test_in_time_nothing_changes(make_runtime: Any, make_client: Any, chat_body: Any) -> None:
    client = await make_client(make_runtime(LONG))
    answer = await client.post(PATH, json=chat_body(), headers={"X-Request-Timeout-Ms": "60000"})
    assert answer.json()["choices"][0]["message"]["content"] == ("word " * 400)


@pytest.mark.parametrize("given", ["0", "-1", "1.5", "soon", "9" * 30, "²"])
async def test_a_timeout_that_is_none_is_refused(start: Any, chat_body: Any, given: str) -> None:
    _, client = await start()
    headers = [(b"x-request-timeout-ms", given.encode())]
    answer = await client.post(PATH, json=chat_body(), headers=headers)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "X-Request-Timeout-Ms"
