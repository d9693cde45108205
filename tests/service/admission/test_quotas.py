"""Each caller keeps to its own requests and tokens a minute, on every route that costs."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from auth.base import PrincipalLimits
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
