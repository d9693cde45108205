"""What would wait too long is refused at once, and only that."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from engines.base import EngineStats, SamplingParams
from engines.grammar.tree import Literal
from service.admission import gate
from service.admission.gate import Bounds, Gate
from service.admission.load import Load
from service.answer.plan import Plan
from service.request import RequestContext

PATH = "/v1/chat/completions"
ANSWER = "<|channel|>final<|message|>" + "word " * 20 + "<|return|>"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def plan() -> Callable[..., Plan]:
    def make(num_prompt: int = 90, max_tokens: int = 5, **fields: Any) -> Plan:
        prompt = tuple(range(num_prompt))
        return Plan(RequestContext("r"), prompt, SamplingParams(max_tokens), 4096, **fields)

    return make


@pytest.fixture
def experienced(clock: Clock, plan: Any) -> Load:
    """A load whose requests of 100 tokens of work came through one a second."""
    load = Load(clock)
    for _ in range(10):
        ticket = load.ticket(plan(), "")
        load.enter(ticket)
        clock.now += 1
        load.begin(ticket)
    return load


def enter(load: Load, plan: Plan, tenant: str, number: int) -> None:
    for _ in range(number):
        load.enter(load.ticket(plan, tenant))


def test_the_wait_is_the_work_ahead_at_its_price(experienced: Load, plan: Any) -> None:
    enter(experienced, plan(), "", 4)
    assert experienced.predicted_wait_s(experienced.ticket(plan(), "")) == pytest.approx(5)
    longer = experienced.ticket(plan(290), "")
    assert experienced.predicted_wait_s(longer) == pytest.approx(7)


def test_another_tenants_flood_is_not_all_ahead(experienced: Load, plan: Any) -> None:
    enter(experienced, plan(), "flood", 50)
    flood = experienced.ticket(plan(), "flood")
    other = experienced.ticket(plan(), "other")
    urgent = experienced.ticket(plan(priority=-1), "flood")
    patient = experienced.ticket(plan(priority=1), "other")
    waits = [experienced.predicted_wait_s(each) for each in (flood, other, urgent, patient)]
    assert waits == pytest.approx([51, 2, 0, 51])


def test_a_queue_that_stands_still_is_seen_before_anyone_comes_through(
    experienced: Load, plan: Any, clock: Clock
) -> None:
    enter(experienced, plan(), "", 3)
    clock.now += 20
    assert experienced.predicted_wait_s(experienced.ticket(plan(), "")) == pytest.approx(80)


def test_nothing_is_predicted_without_experience_or_a_queue(
    experienced: Load, plan: Any, clock: Clock
) -> None:
    assert experienced.predicted_wait_s(experienced.ticket(plan(100_000), "")) == 0
    new = Load(clock)
    enter(new, plan(), "", 50)
    clock.now += 1000
    assert new.predicted_wait_s(new.ticket(plan(), "")) == 0


def test_one_slow_start_is_forgotten(clock: Clock, plan: Any) -> None:
    load = Load(clock)
    for seconds in [30.0] + [0.1] * 60:
        ticket = load.ticket(plan(), "")
        load.enter(ticket)
        clock.now += seconds
        load.begin(ticket)
    enter(load, plan(), "", 1)
    assert load.predicted_wait_s(load.ticket(plan(), "")) < 0.5


def test_who_waits_for_a_grammar_is_not_priced_and_is_ahead_of_nobody(
    experienced: Load, plan: Any, clock: Clock
) -> None:
    """A slow grammar of one caller made the gate refuse all others after a while."""
    for number in range(6):
        slow = experienced.ticket(plan(grammar=Literal(f"{number}")), "flood")
        experienced.enter(slow)
    clock.now += 45
    enter(experienced, plan(), "other", 1)
    assert experienced.predicted_wait_s(experienced.ticket(plan(), "other")) == pytest.approx(2)
    experienced.begin(slow)
    assert experienced.predicted_wait_s(experienced.ticket(plan(), "other")) == pytest.approx(2)


def test_requests_whose_grammar_is_compiled_wait_like_any_other(
    experienced: Load, plan: Any
) -> None:
    guided = plan(grammar=Literal("a"))
    first, second = (experienced.ticket(guided, "") for _ in range(2))
    experienced.enter(first)
    experienced.enter(second)
    assert experienced.num_new_grammars("") == 1
    experienced.begin(first)
    assert experienced.num_new_grammars("") == 0
    assert experienced.ticket(plan(), "").ahead == second.work
    assert experienced.ticket(guided, "").new_grammar is None


async def test_one_caller_may_have_so_many_new_grammars_waiting(
    make_runtime: Any, make_client: Any, chat_body: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "MOST_NEW_GRAMMARS", 2)
    runtime = make_runtime(ANSWER, step_s=0.1, max_num_seqs=1)
    client = await make_client(runtime)

    def ask(word: str) -> Any:
        body = chat_body(structured_outputs={"choice": [word]}, max_tokens=1)
        return asyncio.create_task(client.post(PATH, json=body))

    running = asyncio.create_task(client.post(PATH, json=chat_body()))
    taken = [ask("a"), ask("b")]
    while runtime.lifecycle.num_running < 3:
        await asyncio.sleep(0.01)
    refused = await ask("c")
    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == "too_many_new_grammars"
    assert [(await task).status_code for task in taken] == [200, 200]
    assert (await ask("c")).status_code == 200
    assert (await running).status_code == 200


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


async def test_a_burst_at_a_new_server_is_judged_by_its_first_answers(
    make_runtime: Any, make_client: Any, chat_body: Any
) -> None:
    """All of it was let in, as nothing was known, and the last waited for all the others."""
    options = {"step_s": 0.01, "max_num_seqs": 1}  # an answer takes 0.24 s
    runtime = make_runtime(ANSWER, gate=Gate(Bounds(max_wait_s=1.0)), **options)
    client = await make_client(runtime)
    asked = [asyncio.create_task(client.post(PATH, json=chat_body())) for _ in range(20)]
    statuses = [(await task).status_code for task in asked]
    assert set(statuses) == {200, 503}
    assert 2 <= statuses.count(200) <= 8
    assert (await client.post(PATH, json=chat_body())).status_code == 200


async def test_who_waits_for_the_first_answers_waits_no_longer_than_anybody(
    make_runtime: Any, make_client: Any, chat_body: Any
) -> None:
    runtime = make_runtime(ANSWER, gate=Gate(Bounds(max_wait_s=0.3)), step_s=0.01, max_num_seqs=1)
    client = await make_client(runtime)
    endless = chat_body(min_tokens=100_000, max_tokens=100_000)
    running = asyncio.create_task(client.post(PATH, json=endless))
    async with asyncio.timeout(60):
        while (await runtime.engine.stats()).num_running < 1:
            await asyncio.sleep(0.01)
    asked = [asyncio.create_task(client.post(PATH, json=chat_body())) for _ in range(4)]
    async with asyncio.timeout(60):  # three in the engine's queue, the last one before the gate
        assert [(await task).status_code for task in asked] == [503] * 4
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_who_was_let_in_wrongly_is_told_when_the_time_is_up(
    make_runtime: Any, make_client: Any, chat_body: Any
) -> None:
    """Fast first tokens say nothing of answers so long that no place becomes free."""
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
    make_runtime: Any, make_client: Any, chat_body: Any
) -> None:
    runtime = make_runtime(ANSWER, step_s=0.008, max_num_seqs=1)
    client = await make_client(runtime)
    for _ in range(4):
        await client.post(PATH, json=chat_body(max_tokens=2))
    waiting = [asyncio.create_task(client.post(PATH, json=chat_body())) for _ in range(4)]
    await asyncio.sleep(0.1)
    hasty = await client.post(PATH, json=chat_body(), headers={"X-Request-Timeout-Ms": "50"})
    assert hasty.status_code == 503
    assert "after the 0.05 s that this request has" in hasty.json()["error"]["message"]
    assert [(await task).status_code for task in waiting] == [200] * 4


@pytest.mark.parametrize(
    ("num_free", "num_waiting", "status"), [(1, 8, 503), (1, 7, 200), (30, 8, 200)]
)
async def test_a_full_cache_refuses_only_when_the_queue_is_as_long_as_what_runs(
    make_runtime: Any,
    make_client: Any,
    chat_body: Any,
    monkeypatch: pytest.MonkeyPatch,
    num_free: int,
    num_waiting: int,
    status: int,
) -> None:
    runtime = make_runtime(ANSWER)
    client = await make_client(runtime)
    stats = EngineStats(8, num_waiting, num_kv_blocks=100, num_free_kv_blocks=num_free)

    async def full() -> EngineStats:
        return stats

    monkeypatch.setattr(runtime.engine, "stats", full)
    await client.post(PATH, json=chat_body())  # asks the engine; nobody waits for its answer
    assert (await client.post(PATH, json=chat_body())).status_code == status


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
