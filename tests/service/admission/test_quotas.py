"""Each caller keeps to its own requests and tokens a minute, on every route that costs."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from auth.base import PrincipalLimits
from service.admission.concurrency import ConcurrencyLimit
from service.admission.counters import MinuteCounters
from service.admission.gate import Gate, Quotas

MESSAGES = [{"role": "user", "content": "Hi"}]
ROUTES = [
    ("/v1/chat/completions", {"messages": MESSAGES}),
    ("/v1/chat/completions", {"messages": MESSAGES, "stream": True}),
    ("/v1/chat/completions/render", {"messages": MESSAGES}),
    ("/tokenize", {"prompt": "Hi"}),
    ("/detokenize", {"tokens": [1]}),
]


def key(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name}"}


@pytest.mark.parametrize(("path", "fields"), ROUTES)
async def test_requests_per_minute(
    make_runtime: Any, make_client: Any, named: Any, hello: str, path: str, fields: Any
) -> None:
    runtime = make_runtime(hello, authenticator=named(requests_per_min=2))
    client = await make_client(runtime)
    body = {"model": "gpt-oss-20b"} | fields
    answers = [await client.post(path, json=body, headers=key("ann")) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    remaining = [answer.headers["x-ratelimit-remaining-requests"] for answer in answers]
    assert remaining == ["1", "0", "0"]
    assert answers[0].headers["x-ratelimit-limit-requests"] == "2"
    refused = answers[2]
    assert 1 <= int(refused.headers["retry-after"]) <= 120
    assert re.fullmatch(r"(\d+m)?[\d.]+s", refused.headers["x-ratelimit-reset-requests"])
    error = refused.json()["error"]
    assert error["type"] == "rate_limit_error"
    assert "2 requests per minute" in error["message"]
    other = await client.post(path, json=body, headers=key("bob"))
    assert other.status_code == 200


async def test_a_body_that_is_wrong_counts_too_and_its_answer_says_how_the_caller_stands(
    make_runtime: Any, make_client: Any, named: Any, hello: str
) -> None:
    limits = named(requests_per_min=2, tokens_per_min=100)
    client = await make_client(make_runtime(hello, authenticator=limits))
    path = "/v1/chat/completions"
    answers = [await client.post(path, content=b"{", headers=key("ann")) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [400, 400, 429]
    assert [a.headers["x-ratelimit-remaining-requests"] for a in answers] == ["1", "0", "0"]
    assert [a.headers["x-ratelimit-remaining-tokens"] for a in answers] == ["100"] * 3


async def test_tokens_per_minute_count_prompts_before_and_answers_after(
    make_runtime: Any, make_client: Any, named: Any, hello: str, chat_body: Any
) -> None:
    runtime = make_runtime(hello, authenticator=named(tokens_per_min=200))
    client = await make_client(runtime)
    first = await client.post("/v1/chat/completions", json=chat_body(), headers=key("ann"))
    usage = first.json()["usage"]
    left = 200 - usage["prompt_tokens"]
    assert first.headers["x-ratelimit-remaining-tokens"] == str(left)
    second = await client.post("/v1/chat/completions", json=chat_body(), headers=key("ann"))
    left -= usage["completion_tokens"] + usage["prompt_tokens"]
    assert second.headers["x-ratelimit-remaining-tokens"] == str(left)
    third = await client.post("/v1/chat/completions", json=chat_body(), headers=key("ann"))
    assert third.status_code == 429
    assert "200 tokens per minute" in third.json()["error"]["message"]


async def test_no_more_than_so_many_at_a_time_and_the_place_is_given_back(
    make_runtime: Any, make_client: Any, named: Any, hello: str, chat_body: Any
) -> None:
    runtime = make_runtime(hello, authenticator=named(max_concurrent=1), step_s=0.02)
    client = await make_client(runtime)
    path = "/v1/chat/completions"
    running = asyncio.create_task(client.post(path, json=chat_body(), headers=key("ann")))
    async with asyncio.timeout(60):
        while not runtime.lifecycle.num_running:
            await asyncio.sleep(0)
    refused = await client.post(path, json=chat_body(), headers=key("ann"))
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert "which is the limit" in refused.json()["error"]["message"]
    assert (await running).status_code == 200
    again = await client.post(path, json=chat_body(), headers=key("ann"))
    assert again.status_code == 200
    assert "x-ratelimit-limit-requests" not in again.headers


async def test_an_open_server_has_one_limit_for_all(
    make_runtime: Any, make_client: Any, hello: str, chat_body: Any
) -> None:
    gate = Gate(quotas=Quotas(PrincipalLimits(requests_per_min=1)))
    client = await make_client(make_runtime(hello, gate=gate))
    path = "/v1/chat/completions"
    statuses = [(await client.post(path, json=chat_body())).status_code for _ in range(2)]
    assert statuses == [200, 429]


async def test_replicas_count_together_in_redis(
    make_runtime: Any, make_client: Any, hello: str, chat_body: Any, redis_url: str
) -> None:
    counters = [MinuteCounters(redis_url), MinuteCounters(redis_url)]
    clients = []
    for each in counters:
        gate = Gate(quotas=Quotas(PrincipalLimits(requests_per_min=3), each))
        clients.append(await make_client(make_runtime(hello, gate=gate)))
    path = "/v1/chat/completions"
    statuses = [(await clients[i % 2].post(path, json=chat_body())).status_code for i in range(4)]
    assert statuses == [200, 200, 200, 429]
    for each in counters:
        await each.close()


async def test_replicas_count_running_requests_together_in_redis(
    make_runtime: Any, make_client: Any, hello: str, chat_body: Any, redis_url: str
) -> None:
    places = [ConcurrencyLimit(redis_url), ConcurrencyLimit(redis_url)]
    runtimes, clients = [], []
    for each in places:
        gate = Gate(quotas=Quotas(PrincipalLimits(max_concurrent=2), concurrency=each))
        runtimes.append(make_runtime(hello, gate=gate, step_s=0.05))
        clients.append(await make_client(runtimes[-1]))
    path = "/v1/chat/completions"
    running = [asyncio.create_task(each.post(path, json=chat_body())) for each in clients]
    async with asyncio.timeout(60):
        for runtime in runtimes:
            while not (await runtime.engine.stats()).num_running:
                await asyncio.sleep(0.005)
    assert (await clients[0].post(path, json=chat_body())).status_code == 429
    assert [(await task).status_code for task in running] == [200, 200]
    assert (await clients[1].post(path, json=chat_body())).status_code == 200
    for each in places:
        await each.close()


async def test_the_places_of_a_dead_replica_come_free_and_those_of_a_living_stay(
    redis_url: str,
) -> None:
    dead, living, other = (ConcurrencyLimit(redis_url, lease_s=1.0) for _ in range(3))
    async with dead.hold("eve", 2), living.hold("eve", 2):
        await dead.close()  # as if its process had ended: nobody renews
        async with other.hold("eve", 2) as has_place:
            assert not has_place
        async with asyncio.timeout(60):
            while True:
                async with other.hold("eve", 2) as has_place:
                    if has_place:
                        break
                await asyncio.sleep(0.05)
        await asyncio.sleep(1.2)  # longer than the living one's lease, which it renews
        async with other.hold("eve", 2), other.hold("eve", 2) as has_third_place:
            assert not has_third_place
    for each in (dead, living, other):
        await each.close()


async def test_a_lost_redis_locks_nobody_out_and_limits_go_on_in_memory(
    make_runtime: Any, make_client: Any, hello: str, chat_body: Any, caplog: Any
) -> None:
    counters = MinuteCounters("redis://127.0.0.1:1/0")
    places = ConcurrencyLimit("redis://127.0.0.1:1/0")
    limits = PrincipalLimits(requests_per_min=2, max_concurrent=1)
    gate = Gate(quotas=Quotas(limits, counters, places))
    client = await make_client(make_runtime(hello, gate=gate))
    path = "/v1/chat/completions"
    statuses = [(await client.post(path, json=chat_body())).status_code for _ in range(3)]
    assert statuses == [200, 200, 429]
    assert caplog.text.count("Redis failed") == 2  # one for each kind of count
    await counters.close()
    await places.close()


@pytest.mark.parametrize("limit", [5, 40])
async def test_what_was_refused_is_taken_when_retry_after_says(
    monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    now = 1_790_000_010.0
    monkeypatch.setattr("time.time", lambda: now)
    counters = MinuteCounters()
    for _ in range(limit):
        assert (await counters.take("requests", "ann", limit, 1)).retry_s is None
        now += 0.5
    refused = await counters.take("requests", "ann", limit, 1)
    assert refused.retry_s is not None
    assert 0 < refused.retry_s <= refused.reset_s <= 120
    now += refused.retry_s + 0.01
    assert (await counters.take("requests", "ann", limit, 1)).retry_s is None
