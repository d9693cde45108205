"""Who is served next, and who is refused, before any engine: tenants, priority, a full queue."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from engines.base import Engine, EngineRequest
from engines.errors import QueueFull
from tests.engines.contract.contenders import Checkpoint, modes, running

EVERY = pytest.mark.parametrize("mode", modes(processes=False))


async def num_tokens(engine: Engine, request: EngineRequest) -> int:
    return sum([len(event.token_ids) async for event in engine.generate(request)])


async def until_waiting(engine: Engine, num_waiting: int) -> None:
    async with asyncio.timeout(60):
        while (await engine.stats()).num_waiting < num_waiting:
            await asyncio.sleep(0.001)


@EVERY
async def test_many_of_one_tenant_do_not_hold_up_anothers_one(
    mode: str, checkpoint: Checkpoint, make_request: Any
) -> None:
    order: list[str] = []

    async def ask(tenant: str, number: int) -> None:
        request = make_request((5, number), max_tokens=6)
        await num_tokens(engine, replace(request, tenant=tenant))
        order.append(tenant)

    async with running(mode, checkpoint, max_num_seqs=2) as started, asyncio.timeout(60):
        engine = started.engine
        flood = [asyncio.create_task(ask("flood", number)) for number in range(2, 42)]
        await until_waiting(engine, 30)
        await ask("other", 50)
        assert order.count("flood") < 20
        await asyncio.gather(*flood)


@EVERY
async def test_tenants_with_plenty_get_the_same_number_of_tokens(
    mode: str, checkpoint: Checkpoint, make_request: Any
) -> None:
    seen: Counter[str] = Counter()
    halves: list[Counter[str]] = []

    async def ask(tenant: str, max_tokens: int) -> None:
        request = replace(make_request((5, 6), max_tokens=max_tokens), tenant=tenant)
        async with aclosing(engine.generate(request)) as events:
            async for event in events:
                seen[tenant] += len(event.token_ids)
                if seen.total() >= 180 and not halves:  # an event may have several
                    halves.append(seen.copy())

    async with running(mode, checkpoint, max_num_seqs=2) as started, asyncio.timeout(60):
        engine = started.engine
        many = [ask("short", 3) for _ in range(60)]
        await asyncio.gather(*many, *(ask("long", 12) for _ in range(15)))
    assert seen == {"short": 180, "long": 180}
    assert 0.6 < halves[0]["short"] / halves[0]["long"] < 1.6


@EVERY
async def test_the_urgent_go_first_and_who_does_not_fit_is_told(
    mode: str, checkpoint: Checkpoint, make_request: Any
) -> None:
    order: list[int] = []

    async def ask(priority: int) -> None:
        await num_tokens(engine, replace(make_request(max_tokens=20), priority=priority))
        order.append(priority)

    limits = {"max_num_seqs": 1, "max_num_waiting": 2}
    async with running(mode, checkpoint, **limits) as started, asyncio.timeout(60):
        engine = started.engine
        first = asyncio.create_task(num_tokens(engine, make_request(max_tokens=200)))
        while (await engine.stats()).num_running == 0:
            await asyncio.sleep(0.001)
        waiting = [asyncio.create_task(ask(priority)) for priority in (1, -1)]
        await until_waiting(engine, 2)
        with pytest.raises(QueueFull, match="2 requests are waiting and max_num_waiting is 2"):
            await num_tokens(engine, make_request())
        await asyncio.gather(first, *waiting)
    assert order == [-1, 1]
