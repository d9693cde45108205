"""Token budgets: until when a key may ask, what it is told, what counts."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest

from auth.base import PrincipalLimits
from parts.usage.settings import UsageSettings
from service.store.base import StoreError
from tests.parts.usage.conftest import Clock, Open, as_, ledger_of


async def chat(
    client: httpx2.AsyncClient, who: str, body: dict[str, Any], **more: Any
) -> httpx2.Response:
    return await client.post("/v1/chat/completions", json=body, headers=as_(who), **more)


async def cost(client: httpx2.AsyncClient, body: dict[str, Any]) -> int:
    answer = await chat(client, "other.unbounded", body)
    tokens: int = answer.json()["usage"]["total_tokens"]
    return tokens


@pytest.mark.parametrize(
    ("period", "reset", "wait_s"),
    [("day", "2026-09-22T00:00:00Z", 35_200), ("month", "2026-10-01T00:00:00Z", 812_800)],
)
async def test_a_key_is_refused_once_its_budget_is_used_up(
    open_service: Open, chat_body: Any, clock: Clock, period: str, reset: str, wait_s: int
) -> None:
    limits: dict[str, PrincipalLimits] = {}
    client = await open_service(limits=limits, counts_all=False)
    each = await cost(client, chat_body())
    limits["a"] = PrincipalLimits(**{f"tokens_per_{period}": 2 * each})
    left = []
    for _ in range(2):
        answer = await chat(client, "team.a", chat_body())
        assert answer.status_code == 200
        left.append(answer.headers["x-harmonium-budget-remaining"])
    assert left == [str(2 * each), str(each)]
    refused = await chat(client, "team.a", chat_body(stream=True))
    assert refused.status_code == 429
    error = refused.json()["error"]
    assert (error["type"], error["code"]) == ("insufficient_quota", "insufficient_quota")
    assert reset in error["message"]
    assert refused.headers["x-harmonium-budget-remaining"] == "0"
    assert refused.headers["x-harmonium-budget-reset"] == reset
    assert refused.headers["x-should-retry"] == "false"
    assert refused.headers["retry-after"] == str(wait_s)
    clock.now += int(refused.headers["retry-after"]) - 1
    assert (await chat(client, "team.a", chat_body())).status_code == 429
    clock.now += 1
    assert (await chat(client, "team.a", chat_body())).status_code == 200
    assert (await chat(client, "team.unbounded", chat_body())).status_code == 200


async def test_a_budget_outlives_its_server_and_is_one_for_all_of_them(
    open_service: Open, chat_body: Any
) -> None:
    limits = {"a": PrincipalLimits(tokens_per_month=1, tokens_per_day=10**9)}
    first = await open_service(limits=limits)
    assert (await chat(first, "team.a", chat_body())).status_code == 200
    await ledger_of(first).write()  # within a second of its own accord, and at a stop
    second = await open_service(limits=limits)
    refused = await chat(second, "team.a", chat_body())
    assert refused.json()["error"]["code"] == "insufficient_quota"
    assert "tokens a month" in refused.json()["error"]["message"]


async def test_a_key_that_replaced_another_has_what_that_one_left(
    open_service: Open, chat_body: Any
) -> None:
    limits = {name: PrincipalLimits(tokens_per_day=1) for name in ("old", "new")}
    client = await open_service(limits=limits, accounts={"new": "key-old"})
    assert (await chat(client, "team.old", chat_body())).status_code == 200
    assert (await chat(client, "team.new", chat_body())).status_code == 429


async def test_prompts_that_run_count_before_their_answers_end(
    open_service: Open, chat_body: Any
) -> None:
    limits: dict[str, PrincipalLimits] = {}
    client = await open_service(limits=limits, step_s=0.05)
    budgets = client.runtime.gate.budgets  # type: ignore[attr-defined]
    num_prompt = (await chat(client, "other.b", chat_body())).json()["usage"]["prompt_tokens"]
    limits["a"] = PrincipalLimits(tokens_per_day=num_prompt)
    request = client.build_request(
        "POST", "/v1/chat/completions", json=chat_body(stream=True), headers=as_("team.a")
    )
    running = asyncio.create_task(client.send(request))
    async with asyncio.timeout(60):
        while not budgets._running:
            await asyncio.sleep(0.001)
    assert (await chat(client, "team.a", chat_body())).status_code == 429
    assert (await running).status_code == 200
    assert budgets._running == {}


async def test_a_store_that_is_away_locks_nobody_out(
    open_service: Open, chat_body: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await open_service(limits={"a": PrincipalLimits(tokens_per_day=1)})

    async def failing(*_: Any) -> None:
        raise StoreError("away")

    monkeypatch.setattr(ledger_of(client).store, "totals", failing)
    assert (await chat(client, "team.a", chat_body())).status_code == 200
    refused = await chat(client, "team.a", chat_body())  # what is known here still counts
    assert refused.status_code == 429


async def test_a_tenants_budget_is_one_for_all_of_its_keys(
    open_service: Open, chat_body: Any, clock: Clock
) -> None:
    each = await cost(await open_service(), chat_body())
    client = await open_service(
        tenants=f"team={2 * each}/month,team={10 * each}/day,*=1/day", counts_all=False
    )
    left = []
    for who in ("team.a", "team.b"):
        answer = await chat(client, who, chat_body())
        assert answer.status_code == 200
        left.append(answer.headers["x-harmonium-budget-remaining"])
    assert left == [str(2 * each), str(each)]
    refused = await chat(client, "team.c", chat_body())
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "insufficient_quota")
    assert "NIM_TENANT_BUDGETS" in refused.json()["error"]["message"]
    assert refused.headers["x-harmonium-budget-reset"] == "2026-10-01T00:00:00Z"
    # Each tenant that is not named has a budget of its own.
    for who, status in (("b.x", 200), ("b.y", 429), ("c.x", 200)):
        assert (await chat(client, who, chat_body())).status_code == status
    clock.now += int(refused.headers["retry-after"])
    assert (await chat(client, "team.c", chat_body())).status_code == 200


async def test_of_a_keys_and_a_tenants_budget_the_smaller_rest_holds(
    open_service: Open, chat_body: Any
) -> None:
    limits = {"small": PrincipalLimits(tokens_per_month=1)}
    client = await open_service(limits=limits, tenants="team=1000000/day")
    assert (await chat(client, "team.small", chat_body())).status_code == 200
    refused = await chat(client, "team.small", chat_body())
    assert "The key's budget of 1 tokens a month" in refused.json()["error"]["message"]
    answer = await chat(client, "team.other", chat_body())
    assert answer.status_code == 200
    assert 0 < int(answer.headers["x-harmonium-budget-remaining"]) < 1_000_000


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ("team", "'team' is not TENANT=TOKENS/day or TENANT=TOKENS/month"),
        ("a=1/day,team=0/day", "'team=0/day' is not"),
        ("team=5/week", "'team=5/week' is not"),
        ("team=5/day,team=6/day", "'team' has two budgets a day"),
    ],
)
def test_a_wrong_budget_is_refused_by_its_entry(given: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        UsageSettings(tenant_budgets=given)
