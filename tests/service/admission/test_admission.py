"""What would wait too long is refused at once, and only that."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from engines.base import ExpectedWait
from service.admission.gate import Bounds, Gate

PATH = "/v1/chat/completions"
ANSWER = "<|channel|>final<|message|>" + "word " * 20 + "<|return|>"


async def test_a_flood_is_refused_with_the_time_to_come_again_and_capacity_is_used(
    make_runtime: Any, make_client: Any, chat_body: Any
) -> None:
    gate = Gate(Bounds(max_wait_s=0.5))
    options = {"step_s": 0.005, "max_num_seqs": 2}  # an answer takes 0.12 s: 17 a second at most
    runtime = make_runtime(ANSWER, gate=gate, **options)
    client = await make_client(runtime)
    for _ in range(4):
        assert (await client.post(PATH, json=chat_body())).status_code == 200

    answers: list[Any] = []
    taken: list[Any] = []

    async def ask() -> None:
        answers.append(await client.post(PATH, json=chat_body()))
        taken.extend(answers[-1:] if answers[-1].status_code == 200 else [])

    asking, began_s = [], time.monotonic()
    async with asyncio.timeout(60):
        while len(answers) < 60 or len(taken) < 10:  # a slow machine takes longer
            asking.append(asyncio.create_task(ask()))
            await asyncio.sleep(0.01)
        await asyncio.gather(*asking)
    refused = [answer for answer in answers if answer.status_code == 503]
    assert refused
    assert len(taken) + len(refused) == len(answers)
    assert len(taken) <= 17 * (time.monotonic() - began_s) + 4
    assert {answer.json()["error"]["code"] for answer in refused} == {"overloaded"}
    assert all(1 <= int(answer.headers["retry-after"]) <= 60 for answer in refused)
    assert (await client.post(PATH, json=chat_body())).status_code == 200


async def test_a_burst_at_a_new_server_is_answered_whole(
    make_runtime: Any, make_client: Any, chat_body: Any
) -> None:
    """Of 200 at once 132 were refused, though all of them took two seconds."""
    options = {"step_s": 0.002, "max_num_seqs": 4}
    runtime = make_runtime(ANSWER, gate=Gate(Bounds(max_wait_s=60.0)), **options)
    client = await make_client(runtime)
    for _ in range(2):  # cold, and with what the first burst taught
        asked = [client.post(PATH, json=chat_body(max_tokens=8)) for _ in range(60)]
        assert {answer.status_code for answer in await asyncio.gather(*asked)} == {200}


async def test_a_body_is_not_read_of_a_request_that_would_wait_too_long(
    make_runtime: Any, make_client: Any, chat_body: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = make_runtime(ANSWER, gate=Gate(Bounds(max_wait_s=10.0)))
    client = await make_client(runtime)
    wait = ExpectedWait(likely_s=18.0, sure_s=14.2)
    monkeypatch.setattr(runtime.engine, "expected_wait", lambda tenant: wait)
    refused = await client.post(PATH, content=b"no JSON at all")
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "overloaded"
    assert refused.headers["retry-after"] == "13"  # 1.25 * 18 - 10
    wait = ExpectedWait(likely_s=18.0, sure_s=9.9)
    monkeypatch.setattr(runtime.engine, "expected_wait", lambda tenant: wait)
    assert (await client.post(PATH, content=b"no JSON at all")).status_code == 400


async def test_who_has_waited_as_long_as_it_may_is_told(
    make_runtime: Any, make_client: Any, chat_body: Any
) -> None:
    runtime = make_runtime(ANSWER, gate=Gate(Bounds(max_wait_s=0.3)), step_s=0.01, max_num_seqs=3)
    client = await make_client(runtime)
    endless = chat_body(min_tokens=100_000, max_tokens=100_000)
    running = [asyncio.create_task(client.post(PATH, json=endless)) for _ in range(3)]
    async with asyncio.timeout(60):
        while (await runtime.engine.stats()).num_running < 3:
            await asyncio.sleep(0.01)
    late = await client.post(PATH, json=chat_body())
    assert late.status_code == 503
    assert late.json()["error"]["code"] == "overloaded"
    assert "Retry-After" in late.headers
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


async def test_who_cannot_be_served_in_their_time_is_told_at_once(
    make_runtime: Any, make_client: Any, chat_body: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = make_runtime(ANSWER)
    client = await make_client(runtime)
    limited = {"X-Request-Timeout-Ms": "20000"}
    wait = ExpectedWait(likely_s=25.0, sure_s=20.5)
    monkeypatch.setattr(runtime.engine, "expected_wait", lambda tenant: wait)
    hasty = await client.post(PATH, json=chat_body(), headers=limited)
    assert hasty.status_code == 503
    assert "longer than this request's timeout of 20 s" in hasty.json()["error"]["message"]
    assert (await client.post(PATH, json=chat_body())).status_code == 200  # none of its own
    wait = ExpectedWait(likely_s=25.0, sure_s=19.5)
    monkeypatch.setattr(runtime.engine, "expected_wait", lambda tenant: wait)
    assert (await client.post(PATH, json=chat_body(), headers=limited)).status_code == 200


async def test_priorities_as_urgent_as_the_operator_allows(
    make_runtime: Any, make_client: Any, chat_body: Any
) -> None:
    client = await make_client(make_runtime(ANSWER, gate=Gate(Bounds(min_priority=-2))))
    statuses = [
        (await client.post(PATH, json=chat_body(priority=priority))).status_code
        for priority in (-3, -2, 0, 7)
    ]
    assert statuses == [400, 200, 200, 200]


async def test_tenants_share_the_engine_through_the_api(
    make_runtime: Any, make_client: Any, chat_body: Any, named: Any
) -> None:
    runtime = make_runtime(ANSWER, authenticator=named(), step_s=0.002, max_num_seqs=1)
    client = await make_client(runtime)
    order: list[str] = []

    async def ask(key: str) -> None:
        await client.post(PATH, json=chat_body(), headers={"X-API-Key": key})
        order.append(key)

    flood = [asyncio.create_task(ask(f"flood-{i}")) for i in range(12)]
    await asyncio.sleep(0.06)
    await ask("other-1")
    assert len(order) <= 5
    await asyncio.gather(*flood)
