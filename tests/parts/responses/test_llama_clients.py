"""What llama.cpp has on its route of responses, in its own words: figures of streams, the path."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from service.http.streaming import EventStream

Fixture = Callable[..., Any]

BODY = {"model": "gpt-oss-20b", "input": "Hi", "stream": True}
BOTH = {"timings_per_token": True, "return_progress": True}
DELTA = "response.output_text.delta"


async def test_deltas_and_the_end_have_timings(
    make_runtime: Fixture, make_client: Fixture, hello: str, typed_events: Fixture
) -> None:
    client = await make_client(make_runtime(hello))
    answer = await client.post("/v1/responses", json={**BODY, **BOTH})
    events = {event["type"]: event for event in typed_events(answer.text)}
    usage = events["response.completed"]["response"]["usage"]
    timings = events["response.completed"]["timings"]
    assert timings["predicted_n"] == usage["output_tokens"]
    assert timings["prompt_n"] + timings["cache_n"] == usage["input_tokens"]
    assert timings["predicted_per_second"] > 0
    assert 0 < events[DELTA]["timings"]["predicted_n"] <= timings["predicted_n"]
    progress = events["response.in_progress"]["prompt_progress"]
    assert progress["processed"] == progress["total"] == usage["input_tokens"]
    assert progress["cache"] == 0
    plain = await client.post("/v1/responses", json=BODY)
    assert "timings" not in plain.text
    assert "prompt_progress" not in plain.text


async def test_progress_waits_for_the_prompt_and_the_numbers_stay_in_order(
    make_runtime: Fixture,
    make_client: Fixture,
    monkeypatch: pytest.MonkeyPatch,
    hello: str,
    typed_events: Fixture,
) -> None:
    """The stream begins, for a keep-alive, before the prompt has been read."""
    runtime, gate = make_runtime(hello, sse_keepalive_s=0.005), asyncio.Event()
    generate = runtime.engine.generate

    async def waiting(request: Any, entered: Callable[[], None]) -> AsyncIterator[Any]:
        entered()
        await gate.wait()
        async for event in generate(request, entered):
            yield event

    on_idle = EventStream._on_idle

    async def idle(self: Any, send: Any) -> None:
        await on_idle(self, send)
        if self._has_begun:
            gate.set()

    monkeypatch.setattr(runtime.engine, "generate", waiting)
    monkeypatch.setattr(EventStream, "_on_idle", idle)
    client = await make_client(runtime)
    url = "/v1/responses"
    answer = await client.post(url, json={**BODY, **BOTH, "store": True})
    assert answer.text.index("keep-alive") < answer.text.index("response.in_progress")
    events = typed_events(answer.text)
    assert [event["sequence_number"] for event in events] == [*range(len(events))]
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[1]["prompt_progress"]["processed"] > 0
    stored = await client.get(f"{url}/{events[0]['response']['id']}", params={"stream": True})
    kinds = [[each["type"] for each in some] for some in (events, typed_events(stored.text))]
    assert kinds[0] == kinds[1]


async def test_a_base_url_may_lack_v1(
    make_runtime: Fixture, make_client: Fixture, hello: str
) -> None:
    """llama.cpp has the route twice, and its clients use either."""
    client = await make_client(make_runtime(hello))
    short = await client.post("/responses", json={"input": "Hi"})
    assert short.status_code == 200
    assert short.json()["model"] == "gpt-oss-20b"
    assert (await client.post("/responses", json={"input": "Hi", "model": "x"})).status_code == 404
    kept = await client.get(f"/v1/responses/{short.json()['id']}")
    assert kept.json()["output"] == short.json()["output"]
