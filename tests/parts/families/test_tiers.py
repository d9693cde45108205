"""`service_tier` and `priority`: who may be urgent, who is served first, and what answers tell."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from auth.base import Credentials, Principal, Scope
from engines.base import EngineRequest, ExpectedWait
from service.admission.gate import Bounds, Gate
from tests.parts.families.table import BODIES, CHAT, MODEL, RESPONSES, TEXT

Fixture = Callable[..., Any]
ANSWER = "<|channel|>final<|message|>" + "word " * 20 + "<|return|>"
OPENAI = (CHAT, TEXT, RESPONSES)


@dataclass(frozen=True)
class ByName:
    """A caller whose key is `urgent` has the scope."""

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        scopes = {Scope.INFERENCE} | ({Scope.PRIORITY} if credentials.value == "urgent" else set())
        return Principal(credentials.value, scopes=frozenset(scopes))


def key(name: str) -> dict[str, str]:
    return {"X-API-Key": name}


def seen_by(runtime: Any, monkeypatch: pytest.MonkeyPatch) -> list[EngineRequest]:
    """The requests that the engine gets from now on."""
    requests, generate = [], runtime.engine.generate

    def record(request: EngineRequest, *rest: Any) -> Any:
        requests.append(request)
        return generate(request, *rest)

    monkeypatch.setattr(runtime.engine, "generate", record)
    return requests


@pytest.mark.parametrize("path", OPENAI)
@pytest.mark.parametrize(
    ("caller", "asked", "used", "priority"),
    [
        ("urgent", "priority", "priority", -1),
        ("urgent", "fast", "priority", -1),
        ("urgent", "auto", "default", 0),
        ("other", "priority", "default", 0),
        ("other", "flex", "flex", 1),
        ("other", "scale", "default", 0),
    ],
)
async def test_the_tier_that_was_used_is_told(
    make_runtime: Fixture,
    make_client: Fixture,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    caller: str,
    asked: str,
    used: str,
    priority: int,
) -> None:
    runtime = make_runtime(ANSWER, authenticator=ByName())
    client = await make_client(runtime)
    requests = seen_by(runtime, monkeypatch)
    body = MODEL | BODIES[path] | {"service_tier": asked}
    whole = (await client.post(path, json=body, headers=key(caller))).json()
    assert whole["service_tier"] == used
    streamed = await client.post(path, json=body | {"stream": True}, headers=key(caller))
    events = [line[6:] for line in streamed.text.splitlines() if line.startswith("data: {")]
    told = [json.loads(event) for event in events]
    told = [event["response"] for event in told if "response" in event] or told
    assert {event["service_tier"] for event in told} == {used}
    assert {request.priority for request in requests} == {priority}


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_no_tier_is_told_where_none_was_asked_for(
    make_runtime: Fixture, make_client: Fixture, path: str
) -> None:
    client = await make_client(make_runtime(ANSWER))
    for stream in (False, True):
        body = MODEL | BODIES[path] | {"stream": stream}
        assert "service_tier" not in (await client.post(path, json=body)).text


@pytest.mark.parametrize("path", OPENAI)
async def test_an_unknown_tier_and_two_wishes_at_once_are_refused(
    make_runtime: Fixture, make_client: Fixture, path: str
) -> None:
    client = await make_client(make_runtime(ANSWER))
    body = MODEL | BODIES[path]
    unknown = await client.post(path, json=body | {"service_tier": "gold"})
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (400, "service_tier")
    both = await client.post(path, json=body | {"service_tier": "flex", "priority": 2})
    assert (both.status_code, both.json()["error"]["param"]) == (400, "priority")


async def test_an_urgent_priority_needs_the_scope(
    make_runtime: Fixture, make_client: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = make_runtime(ANSWER, authenticator=ByName())
    client = await make_client(runtime)
    requests = seen_by(runtime, monkeypatch)
    body = MODEL | BODIES[CHAT] | {"priority": -5}
    refused = await client.post(CHAT, json=body, headers=key("other"))
    assert refused.status_code == 400
    assert "scope priority" in refused.json()["error"]["message"]
    assert (await client.post(CHAT, json=body, headers=key("urgent"))).status_code == 200
    assert [request.priority for request in requests] == [-5]


async def test_an_operator_may_allow_the_tier_to_all(
    make_runtime: Fixture, make_client: Fixture
) -> None:
    client = await make_client(make_runtime(ANSWER, gate=Gate(Bounds(min_priority=-1))))
    body = MODEL | BODIES[CHAT] | {"service_tier": "priority"}
    assert (await client.post(CHAT, json=body)).json()["service_tier"] == "priority"


async def test_priority_goes_before_default_and_flex_after_it(
    make_runtime: Fixture, make_client: Fixture
) -> None:
    runtime = make_runtime(ANSWER, authenticator=ByName(), step_s=0.005, max_num_seqs=1)
    client = await make_client(runtime)
    order: list[str] = []

    async def ask(tier: str) -> None:
        body = MODEL | BODIES[CHAT] | {"service_tier": tier}
        answer = await client.post(CHAT, json=body, headers=key("urgent"))
        order.append(answer.json()["service_tier"])

    first = asyncio.create_task(ask("default"))
    asking = [first]
    async with asyncio.timeout(60):
        while (await runtime.engine.stats()).num_running == 0:
            await asyncio.sleep(0.001)
        for num, tier in enumerate(("flex", "default", "priority"), 1):
            asking.append(asyncio.create_task(ask(tier)))
            while (await runtime.engine.stats()).num_waiting < num:
                await asyncio.sleep(0.001)
        await asyncio.gather(*asking)
    assert order == ["default", "priority", "default", "flex"]


@pytest.mark.parametrize("path", OPENAI)
async def test_flex_is_refused_as_at_openai(
    make_runtime: Fixture, make_client: Fixture, path: str
) -> None:
    """By the engine's queue, once it has waited for the limit."""
    runtime = make_runtime(ANSWER, gate=Gate(Bounds(max_wait_s=0.2)), step_s=0.01, max_num_seqs=1)
    client = await make_client(runtime)
    endless = MODEL | BODIES[CHAT] | {"min_tokens": 100_000, "max_tokens": 100_000}
    running = asyncio.create_task(client.post(CHAT, json=endless))
    async with asyncio.timeout(60):
        while (await runtime.engine.stats()).num_running == 0:
            await asyncio.sleep(0.001)
    for tier, status, code in (
        ("flex", 429, "resource_unavailable"),
        ("default", 503, "overloaded"),
    ):
        body = MODEL | BODIES[path] | {"service_tier": tier}
        refused = await client.post(path, json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (status, code)
        assert int(refused.headers["retry-after"]) >= 1
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_an_urgent_caller_is_not_refused_for_the_wait_of_others(
    make_runtime: Fixture, make_client: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = make_runtime(ANSWER, authenticator=ByName())
    client = await make_client(runtime)
    wait = ExpectedWait(likely_s=200.0, sure_s=100.0)
    monkeypatch.setattr(runtime.engine, "expected_wait", lambda tenant: wait)
    body = MODEL | BODIES[CHAT] | {"service_tier": "priority"}
    answers = [await client.post(CHAT, json=body, headers=key(name)) for name in ("urgent", "x")]
    assert [answer.status_code for answer in answers] == [200, 503]
    body["service_tier"] = "flex"
    refused = await client.post(CHAT, json=body, headers=key("urgent"))
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "resource_unavailable")
