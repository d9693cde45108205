"""`X-Include-Metrics`: how long a request took, in its own answer, whole or streamed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from service.api.common.metrics import RequestMetrics
from tests.parts.families.table import BODIES, CHAT, HI, MESSAGES, MODEL, RESPONSES, TEXT

Fixture = Callable[..., Any]

ASKED = {"X-Include-Metrics": "1"}
ANSWER = "<|channel|>final<|message|>Hi<|return|>"  # five tokens
# A quarter of a second in the queue, 0.1 s to the first token, 0.02 s for each other.
TIMES = {
    "queue_time_ms": 250.0,
    "time_to_first_token_ms": 100.0,
    "generation_time_ms": 80.0,
    "mean_itl_ms": 20.0,
    "tokens_per_second": 27.8,
}


@pytest.fixture
def runtime(make_runtime: Fixture, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Its engine's events come by a clock of their own."""
    runtime, now = make_runtime(ANSWER), 1.0
    generate = runtime.engine.generate

    async def timed(*asked: Any) -> AsyncIterator[Any]:
        nonlocal now
        wait_s = 0.35
        async for event in generate(*asked):
            now += wait_s
            wait_s = 0.02
            yield replace(event, queued_s=0.25)

    monkeypatch.setattr(runtime.engine, "generate", timed)
    monkeypatch.setattr("service.answer.latencies.perf_counter", lambda: now)
    clock = SimpleNamespace(perf_counter=lambda: now)
    monkeypatch.setattr("service.answer.generation.time", clock)
    return runtime


def events_in(text: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data:")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def found_in(event: dict[str, Any]) -> Any:
    return event.get("response", event).get("metrics")


@pytest.mark.parametrize("path", BODIES)
async def test_an_answer_has_its_times(runtime: Any, make_client: Fixture, path: str) -> None:
    client = await make_client(runtime)
    whole = (await client.post(path, json={**MODEL, **BODIES[path]}, headers=ASKED)).json()
    assert whole["metrics"] == TIMES
    assert RequestMetrics.model_validate(TIMES)
    unasked = (await client.post(path, json={**MODEL, **BODIES[path]})).json()
    assert "metrics" not in unasked


@pytest.mark.parametrize("path", BODIES)
async def test_a_stream_has_them_once_at_its_end(
    runtime: Any, make_client: Fixture, path: str
) -> None:
    client = await make_client(runtime)
    body = {**MODEL, **BODIES[path], "stream": True}
    events = events_in((await client.post(path, json=body, headers=ASKED)).text)
    assert [found_in(event) for event in events if found_in(event)] == [TIMES]
    last = [event for event in events if event.get("type") != "message_stop"][-1]
    assert found_in(last) == TIMES
    assert "metrics" not in (await client.post(path, json=body)).text


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_they_are_beside_the_usage_where_that_is_last(
    runtime: Any, make_client: Fixture, path: str
) -> None:
    client = await make_client(runtime)
    body = {**MODEL, **BODIES[path], "stream": True, "stream_options": {"include_usage": True}}
    events = events_in((await client.post(path, json=body, headers=ASKED)).text)
    assert [found_in(event) for event in events if found_in(event)] == [TIMES]
    assert events[-1]["usage"]["completion_tokens"] == 5
    assert events[-1]["metrics"] == TIMES


async def test_one_token_has_no_time_between_tokens(runtime: Any, make_client: Fixture) -> None:
    client = await make_client(runtime)
    body = {**MODEL, **BODIES[TEXT], "max_tokens": 1}
    found = (await client.post(TEXT, json=body, headers=ASKED)).json()["metrics"]
    expected = {"generation_time_ms": 0.0, "mean_itl_ms": None, "tokens_per_second": 10.0}
    assert found == {**TIMES, **expected}


async def test_several_answers_have_none(runtime: Any, make_client: Fixture) -> None:
    client = await make_client(runtime)
    for is_streamed in (False, True):
        body = {**MODEL, "messages": HI, "n": 2, "stream": is_streamed}
        assert "metrics" not in (await client.post(CHAT, json=body, headers=ASKED)).text


@pytest.mark.parametrize(("given", "is_shown"), [("true", True), ("0", False), ("yes", False)])
async def test_the_header_says_1_or_true(
    runtime: Any, make_client: Fixture, given: str, is_shown: bool
) -> None:
    client = await make_client(runtime)
    for path in (MESSAGES, RESPONSES):
        body = {**MODEL, **BODIES[path]}
        answer = await client.post(path, json=body, headers={"X-Include-Metrics": given})
        assert answer.status_code == 200
        assert ("metrics" in answer.json()) is is_shown
