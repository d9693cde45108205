"""What clients see of queue, scheduler and step budget: traces of 1,000 requests, simulated."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from engines.errors import Overloaded
from tests.engines.native.scheduling.simulation import Clock, quantile, random_tokens
from tests.engines.native.traffic.queued import Client, Told, serving, simulate

LIMIT_S = 30.0  # NIM_MAX_QUEUE_WAIT_S


def poisson(client: Client, rate: float, num: int) -> list[Coroutine[Any, Any, Told]]:
    """Requests at random times: prompts of 400 tokens and answers of 100 at the median."""
    chance, due_s, asking = random.Random(1), 0.0, []
    for number in range(num):
        due_s += chance.expovariate(rate)
        num_prompt = min(8192, max(16, int(chance.lognormvariate(math.log(400), 0.9))))
        num_answer = min(1024, max(8, int(chance.lognormvariate(math.log(100), 0.7))))
        prompt = random_tokens(number, num_prompt)
        asking.append(client.ask_at(due_s, prompt, num_answer, max_wait_s=LIMIT_S))
    return asking


def assert_whole(answers: Sequence[Told]) -> None:
    assert [told.error for told in answers if not told.is_whole] == []


@pytest.mark.heavy
def test_targets_hold_at_40_requests_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(clock: Clock) -> list[Told]:
        async with serving(clock) as client:
            return await asyncio.gather(*poisson(client, 40, 1000))

    answers = simulate(monkeypatch, run)
    assert_whole(answers)
    ttfts = [told.ttft_s for told in answers]
    gaps = [gap for told in answers for gap in told.gaps_s]
    assert quantile(ttfts, 0.5) < 0.060
    assert quantile(ttfts, 0.99) < 0.150
    assert max(gaps) < 0.045


@pytest.mark.heavy
def test_a_burst_of_ten_times_what_runs_is_served_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(clock: Clock) -> tuple[list[Told], list[Told]]:
        async with serving(clock, max_num_seqs=100) as client:
            bursts = []
            for first in (0, 1000):  # nothing known of the engine, and all
                asking = [
                    client.ask(random_tokens(first + n, 128), 24, max_wait_s=LIMIT_S)
                    for n in range(1000)
                ]
                bursts.append(await asyncio.gather(*asking))
            return bursts[0], bursts[1]

    for answers in simulate(monkeypatch, run):
        assert_whole(answers)


@pytest.mark.heavy
def test_later_turns_of_agents_are_cached_and_do_not_wait_for_first_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run(clock: Clock) -> list[tuple[Told, int]]:
        later: list[tuple[Told, int]] = []

        async def agent(number: int) -> None:
            context = random_tokens(number, 20_000)
            await asyncio.sleep(0.1 * number)
            for turn in range(5):
                context += random_tokens(1000 * number + turn, 1500)
                told = await client.ask(context, 20, max_wait_s=LIMIT_S)
                assert_whole([told])
                if turn:
                    later.append((told, len(context)))
                await asyncio.sleep(0.5)

        async with serving(clock) as client:
            await asyncio.gather(*map(agent, range(24)))
        return later

    later = simulate(monkeypatch, run)
    num_prompt = sum(num for _, num in later)
    assert sum(told.num_cached for told, _ in later) >= 0.9 * num_prompt
    assert quantile([told.ttft_s for told, _ in later], 0.99) < 1.0


@pytest.mark.heavy
def test_a_tenant_is_served_beside_another_that_floods(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(clock: Clock) -> tuple[list[Told], list[Told]]:
        async with serving(clock, max_num_seqs=50) as client:
            flood = [client.ask(random_tokens(n, 200), 40, tenant="many") for n in range(980)]
            few = [
                client.ask_at(0.2 + 0.1 * n, random_tokens(5000 + n, 200), 40, tenant="few")
                for n in range(20)
            ]
            answers = await asyncio.gather(*flood, *few)
            return answers[: len(flood)], answers[len(flood) :]

    many, few = simulate(monkeypatch, run)
    assert_whole([*many, *few])
    last_s = max(told.ended_s for told in many)
    assert max(told.ended_s for told in few) < 0.6 * last_s
    ttft_s = quantile([told.ttft_s for told in few], 0.5)
    assert ttft_s < 0.1 * quantile([told.ttft_s for told in many], 0.5)


@pytest.mark.heavy
def test_nobody_is_rejected_who_would_have_begun_within_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limit_s = 3.0

    async def run(clock: Clock, max_wait_s: float | None) -> list[Told]:
        async with serving(clock, max_num_seqs=50) as client:
            asking = [
                client.ask(random_tokens(n, 128), 60, max_wait_s=max_wait_s) for n in range(1000)
            ]
            return await asyncio.gather(*asking)

    unlimited = simulate(monkeypatch, lambda clock: run(clock, None))
    assert_whole(unlimited)
    could_begin = sum(told.ttft_s < limit_s for told in unlimited)
    answers = simulate(monkeypatch, lambda clock: run(clock, limit_s))
    whole = [told for told in answers if told.is_whole]
    assert max(told.ttft_s for told in whole) <= limit_s + 0.1  # the limit is for the wait alone
    assert len(whole) >= 0.95 * could_begin


@pytest.mark.heavy
def test_a_retry_after_turns_out_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a burst: who comes again when told to is served, and could not have been by half."""

    async def run(clock: Clock) -> list[tuple[Told, float, Told, Told]]:
        async with serving(clock, max_num_seqs=50) as client:

            async def ask(number: int, at_s: float) -> Told:
                return await client.ask_at(at_s, random_tokens(number, 128), 60, max_wait_s=2.0)

            async def impatient(number: int) -> tuple[Told, float, Told, Told]:
                told = await ask(number, 1.0 + 0.2 * number)
                assert isinstance(told.error, Overloaded)
                now_s, retry_s = clock.now_s, told.error.retry_s
                early = asyncio.create_task(ask(100 + number, now_s + retry_s / 2))
                return told, retry_s, await early, await ask(200 + number, now_s + retry_s)

            burst = [client.ask(random_tokens(1000 + n, 128), 60) for n in range(1000)]
            _, answers = await asyncio.gather(
                asyncio.gather(*burst), asyncio.gather(*map(impatient, range(10)))
            )
            return answers

    answers = simulate(monkeypatch, run)
    for _, _, early, again in answers:
        assert not early.is_whole
        assert again.is_whole


@pytest.mark.parametrize(("gap_s", "num"), [(0.02, 48), (0.05, 64)])
def test_prompts_that_wait_long_lengthen_gaps_and_none_is_refused(
    monkeypatch: pytest.MonkeyPatch, gap_s: float, num: int
) -> None:
    """Contexts of 21,500 tokens at once; with nothing beside them 48 take 17 s to read."""

    async def run(clock: Clock) -> list[Told]:
        async with serving(clock, max_token_gap_s=gap_s) as client:
            asking = [
                client.ask(random_tokens(n, 21_500), 400, max_wait_s=LIMIT_S) for n in range(num)
            ]
            return await asyncio.gather(*asking)

    answers = simulate(monkeypatch, run)
    assert_whole(answers)
    gaps = [gap for told in answers for gap in told.gaps_s]
    assert max(gaps) < 0.25
    early = [gap for told in answers for gap in told.gaps_s[:20] if told.ttft_s < 2.0]
    assert max(early) < 1.1 * gap_s
